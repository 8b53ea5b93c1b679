"""The contract of every model on an accelerator: CUDA, or the simulated device.

What a model does goes through all of it, once and briefly. ``make test-device`` runs the other
tests of the contract there.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import NdarrayOptimizationClosure
from botorch.optim.utils import get_parameters
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import ExactMarginalLogLikelihood
from pandas.testing import assert_frame_equal

from botorch_transfer import (
    RankWeightedGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourcePopulation,
    TransferGP,
)
from botorch_transfer.acquisition import AveragedImprovement
from botorch_transfer.average.base import AveragedGP
from botorch_transfer.gp.objective import TargetObjective
from tests.devices import launches, random_state, waits
from tests.families import OFFSET, SCALE, ShiftedSines
from tests.fits import fit_model
from tests.models.contract import bounds, parts, priors_of, variants, where

CPU = ShiftedSines(device="cpu")
TOLERANCE = 1e-10


@pytest.fixture
def there(device):
    return ShiftedSines(device=device)


def pretrained(case, family, sizes=(5, 4)):
    """The constructor's third argument, of two small source tasks."""
    if not case.takes_prior:
        return family.sources(sizes)
    return _pretrained(case.pretrain, family, sizes)


@cache  # cases that differ by their options share it
def _pretrained(pretrain, family, sizes):
    """Moves there what was pre-trained on the CPU: see test_pretraining_on_a_device.py."""
    on_cpu = replace(family, device="cpu")
    if family != on_cpu:
        prior = deepcopy(_pretrained(pretrain, on_cpu, sizes))
        if isinstance(prior, Mapping):
            return {name: each.to(family.device) for name, each in prior.items()}
        return prior.to(family.device)
    return pretrain(family.sources(sizes), input_transform=None)


fit = partial(fit_model, num_restarts=1, max_iter=2)


def assert_close_on(device, ours, expected):
    """Compares results with the CPU's, all of them where they should be."""
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        assert tensor.device.type == device, name
        torch.testing.assert_close(
            tensor.detach().cpu(),
            expected[name].detach(),
            rtol=TOLERANCE,
            atol=TOLERANCE * SCALE,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def moments(prefix, posterior):
    return {f"{prefix}, mean": posterior.mean, f"{prefix}, variance": posterior.variance}


def step(case, family, folder):
    """All that a model does in a step of Bayesian optimization and around it, by name."""
    torch.manual_seed(0)
    prior = pretrained(case, family)
    train_X, train_Y = family.target(4)
    model = case.build(train_X, train_Y, prior)
    fit(model)
    X = family.inputs(3, 2, seed=95).requires_grad_()
    posterior = model.posterior(X)
    results = moments("posterior", posterior)
    (gradient,) = torch.autograd.grad(posterior.mean.sum() + posterior.variance.sum(), X)
    results["gradient"] = gradient
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    for name, acquisition in {
        "LogEI": LogExpectedImprovement(model, train_Y.max()),
        "qLogNEI": qLogNoisyExpectedImprovement(model, train_X, sampler),
    }.items():
        point = family.inputs(3, 1, seed=97).requires_grad_()
        results[f"{name}'s value"] = acquisition(point)
        (gradient,) = torch.autograd.grad(results[f"{name}'s value"].sum(), point)
        results[f"{name}'s gradient"] = gradient
        if case.representative and name == "LogEI":
            options = {"num_restarts": 1, "raw_samples": 4, "options": {"maxiter": 2, "seed": 0}}
            results[name], _ = optimize_acqf(acquisition, bounds(family), q=1, **options)
    new_X = family.inputs(2, seed=96)
    conditioned = model.condition_on_observations(new_X, family.value(new_X))
    results |= moments("conditioned", conditioned.posterior(X))
    if not case.ensemble:  # as with BoTorch's ensembles
        results |= moments("fantasies", model.fantasize(new_X, sampler).posterior(new_X))
        results |= moments("left out", model.loo_posterior())
    results["paths"] = draw_matheron_paths(model, torch.Size([64]))(new_X)
    path = folder / f"{case.name} on {family.device}"
    torch.save(model.state_dict(), path)
    other = case.build(train_X, train_Y, prior)
    other.load_state_dict(torch.load(path))
    results |= moments("loaded state", other.posterior(X))
    if case.takes_prior:
        loaded = {}
        for name, each in priors_of(prior).items():
            each.save(path)
            loaded[name] = type(each).load(path, device=family.device)
        argument = loaded.get("", loaded)
        results |= moments("loaded prior", case.build(train_X, train_Y, argument).posterior(X))
    return results


@where(lambda case: not case.sibling)
def test_a_step_is_that_of_the_cpu(case, there, tmp_path):
    ours, expected = (step(case, family, tmp_path) for family in (there, CPU))
    if there.device == "cuda":  # its random numbers are others
        assert_same_distribution(ours.pop("paths").cpu(), expected.pop("paths"))
    assert_close_on(there.device, ours, expected)


def assert_same_distribution(draws, others):
    """Compares means and standard deviations of 64 independent draws each."""
    difference, spread = draws.mean(dim=0) - others.mean(dim=0), others.std(dim=0)
    assert (difference.abs() <= 5 * (2 / 64) ** 0.5 * spread + 1e-6 * SCALE).all()
    ratio = (draws.std(dim=0) + 1e-6 * SCALE) / (spread + 1e-6 * SCALE)
    assert ((ratio > 0.5) & (ratio < 2)).all()


def has_report(case) -> bool:
    """Averages have one, and models with a posterior of each source task."""
    return issubclass(case.model_class, AveragedGP) or case.model_class.prior_class is SourceGPs


@where(has_report)
def test_reports_are_those_of_the_cpu(case, there):
    """They go through SciPy."""
    ours, expected = (
        case.build(*family.target(6), pretrained(case, family)).transfer_report()
        for family in (there, CPU)
    )
    assert_frame_equal(ours, expected, rtol=1e-8)


@variants("n", everywhere=[0], representatives=[1])
def test_few_points(case, n, there, device):
    models = []
    for family in (there, CPU):
        model = case.build(*family.target(n), pretrained(case, family))
        before = random_state(device)
        fit(model)
        assert torch.equal(before, random_state(device))
        models.append(model)
    ours, expected = (
        moments("posterior", model.posterior(family.inputs(3, seed=95)))
        for model, family in zip(models, (there, CPU), strict=True)
    )
    assert_close_on(there.device, ours, expected)


@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_single_precision(representative, device):
    there = ShiftedSines(dtype=torch.float, device=device)
    model = representative.build(*there.target(5), pretrained(representative, there))
    X = there.inputs(4, seed=95)
    ours, on_cpu = model.posterior(X), deepcopy(model).cpu().posterior(X.cpu())
    assert ours.mean.dtype == ours.variance.dtype == torch.float
    torch.testing.assert_close(ours.mean.cpu(), on_cpu.mean, rtol=0, atol=1e-2 * SCALE)
    torch.testing.assert_close(ours.variance.cpu(), on_cpu.variance, rtol=0, atol=1e-2 * SCALE**2)


def test_models_move(case, there):
    """With all of their tensors, and without those of their priors."""
    priors = {family.device: pretrained(case, family) for family in (CPU, there)}
    for first, second in ((CPU, there), (there, CPU)):
        model = case.build(*first.target(4), priors[first.device])
        expected = model.posterior(first.inputs(3, seed=95)).mean.to(second.device)
        model.to(second.device)
        tensors = [*model.parameters(), *model.buffers(), *model.train_inputs, model.train_targets]
        assert {tensor.device.type for tensor in tensors} == {second.device}
        ours = model.posterior(second.inputs(3, seed=95)).mean
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8 * SCALE)
    if case.takes_prior:
        for name, prior in priors.items():
            buffers = [buffer for each in priors_of(prior).values() for buffer in each.buffers()]
            assert {buffer.device.type for buffer in buffers} == {name}


# -------------------------------------------------------------------------------------------- waits


def waits_of_a_step(model, X):
    """How often the CPU waits for what an optimizer asks for at every step, by name."""
    acquisition = LogExpectedImprovement(model.eval(), best_f=OFFSET + SCALE)

    def posterior():
        posterior = model.posterior(X)
        torch.autograd.grad(posterior.mean.sum() + posterior.variance.sum(), X)

    asked = {
        "posterior": posterior,
        "acquisition": lambda: torch.autograd.grad(acquisition(X).sum(), X),
    }
    for question in asked.values():
        question()  # remembers what does not change
    counts = {name: waits(question).total() for name, question in asked.items()}
    fits = [found for part in parts(model) if (found := waits_of_a_fit(part))]
    return counts | {name: max(found[name] for found in fits) for name in (fits or [{}])[0]}


@cache
def waits_of_a_plain_step(there):
    X = there.inputs(4, 1, seed=98).requires_grad_()
    return waits_of_a_step(SingleTaskGP(*there.target(4)), X)


def waits_of_a_fit(model):
    """How often the CPU waits in a step of the fit of an exact GP, if it has something to fit."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    parameters = get_parameters(mll, requires_grad=True)
    if not parameters:
        return {}
    loss = get_loss_closure_with_grads(mll, parameters)
    loss()
    optimized = NdarrayOptimizationClosure(loss, parameters)
    state = optimized.state
    step = waits(lambda: optimized(state)).total()
    # Besides, BoTorch copies each parameter there, and each gradient back.
    return {"fit": waits(loss).total(), "step of a fit": step - 2 * len(parameters)}


#: How many times as often a model may wait as a ``SingleTaskGP``.
MOST = {"posterior": 4, "acquisition": 4, "fit": 3, "step of a fit": 3}


# Joint models share what HGP does with tasks, and TransferGP does what its members do; what is
# learned otherwise knows no tasks.
@where(
    lambda case: (
        case.representative or case.model_class in (RankWeightedGP, SequentialHierarchicalGP)
    )
)
def test_tasks_cost_no_waits(case, there):
    X = there.inputs(4, 1, seed=98).requires_grad_()
    few, many = (
        waits_of_a_step(case.build(*there.target(4), pretrained(case, there, (4,) * num_tasks)), X)
        for num_tasks in (2, 4)
    )
    assert few == many
    plain = waits_of_a_plain_step(there)
    assert all(few[name] <= MOST[name] * plain[name] for name in few), (few, plain)


@where(lambda case: case.representative and case.takes_prior)
def test_tasks_cost_no_waits_in_a_fit_in_closed_form(case, there, monkeypatch):
    evaluate, counts = TargetObjective.__call__, {2: set(), 4: set()}
    for num_tasks, found in counts.items():

        def counted(objective, theta, rows, found=found):
            results = []
            found.add(waits(lambda: results.append(evaluate(objective, theta, rows))).total())
            return results[0]

        monkeypatch.setattr(TargetObjective, "__call__", counted)
        fit(case.build(*there.target(4), pretrained(case, there, (4,) * num_tasks)))
    # Whether a Cholesky factorization failed; at first, the hyperpriors go to the device.
    assert counts[2] == counts[4] == {1, 2}


# ----------------------------------------------------------------------------------------- launches


def default_model(there, n):
    X, Y = there.target(n)
    sources = there.sources((12, 9, 7))
    prior = {"population": SourcePopulation.fit, "scaml": SourceGPs.fit}
    return TransferGP(X, Y, {name: fit(sources, max_iter=20) for name, fit in prior.items()})


def test_an_evaluation_of_the_default_launches_few_kernels(there):
    """A GPU evaluates few candidates as fast as the CPU launches kernels."""
    X, reference = there.inputs(4, 1, seed=98).requires_grad_(), there.inputs(9, seed=1)
    model = default_model(there, 6).eval()
    improvement = AveragedImprovement.from_model(model, OFFSET + SCALE, reference)

    def evaluate():
        torch.autograd.grad(improvement(X).sum(), X)

    evaluate()
    assert waits(evaluate).total() == 0
    assert launches(evaluate) <= 300  # 245 of SingleTaskGP's LogExpectedImprovement


def test_a_fit_of_the_default_waits_and_launches_little(there):
    mlls = [
        ExactMarginalLogLikelihood(model.likelihood, model)
        for model in (default_model(there, 20) for _ in range(2))
    ]
    found = (
        waits(lambda: fit_gpytorch_mll(mlls[0])).total(),
        launches(lambda: fit_gpytorch_mll(mlls[1])),
    )
    assert found[0] <= 450
    assert found[1] <= 8_000
