"""The contract of every model, 4: ``fit_gpytorch_mll`` fits the target and nothing else.

That a fit repeats, and leaves the random state as it is, test_contract_few_points.py has.
"""

from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.constraints import GreaterThan
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from torch.nn import ModuleList

from botorch_transfer.average.base import AveragedGP
from botorch_transfer.joint.models import JointTransferGP
from tests.families import ShiftedSines
from tests.fits import log_posterior
from tests.models.contract import on_every_kind_of_fit, on_every_model, parts, priors_of, where

FAMILY = ShiftedSines()


def objective(model) -> float:
    """The fit's objective: log marginal likelihood and log hyperpriors, per point."""
    total = sum(float(log_posterior(part)) for part in parts(model))
    model.eval()
    return total


BRIEF = {"num_restarts": 0, "optimizer_kwargs": {"options": {"maxiter": 5}}}


def fit(model, **kwargs):
    mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **kwargs)
    assert not model.training
    assert not model.likelihood.training
    return mll


def snapshot(module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_equal_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]) or torch.equal(
            tensor.isnan(), right[name].isnan()
        ), name


@on_every_kind_of_fit
def test_noise_that_was_set_and_fixed_is_kept(case):
    model = case.target(5)
    model.likelihood.noise = 0.3
    model.likelihood.requires_grad_(False)
    copy = deepcopy(model)
    for each in (model, copy):
        fit(each, **BRIEF)
        for part in (each, *parts(each)):
            noise = part.likelihood.noise * (part.own_units[1] / each.own_units[1]) ** 2
            torch.testing.assert_close(noise, torch.full_like(noise, 0.3))


@on_every_kind_of_fit
def test_a_constraint_of_the_noise_holds(case):
    """In an average, constraints and hyperpriors belong to the members."""
    model = case.target(5)
    constraint = GreaterThan(0.2)
    if isinstance(model, AveragedGP):
        for module in (model.likelihood, model.likelihood.noise_covar):
            with pytest.raises(UnsupportedError, match=r"from the models in model\.members"):
                module.register_prior("noise_prior", LogNormalPrior(-1.0, 0.1), "noise")
        with pytest.raises(UnsupportedError, match=r"from the models in model\.members"):
            model.likelihood.noise_covar.register_constraint("raw_noise", constraint)
        return
    model.likelihood.noise_covar.register_constraint("raw_noise", constraint)
    fit(model, **BRIEF)
    assert (model.likelihood.noise >= 0.2).all()


@pytest.mark.gaussian
@where(lambda case: not case.frozen and (not case.sibling or case.fit_only))
def test_fit_improves_the_objective(case):
    model = case.target(1)
    before = objective(model)
    fit(model, **BRIEF)
    after = objective(model)
    assert after > before
    posterior = model.posterior(FAMILY.inputs(5))
    assert posterior.mean.isfinite().all()
    assert (posterior.variance > 0).all()


@where(lambda case: case.frozen)
def test_a_frozen_model_stays_as_it_is(case):
    model = case.target(8)
    before = snapshot(model)
    fit(model)
    assert_equal_bits(before, snapshot(model))


def test_more_starts_are_no_worse(representative):
    few, many = representative.target(6), representative.target(6)
    steps = {"optimizer_kwargs": {"options": {"maxiter": 20}}}
    fit(few, num_restarts=0, **steps)
    fit(many, num_restarts=2, **steps)
    assert objective(many) >= objective(few) - 1e-6


@pytest.mark.gaussian
@on_every_kind_of_fit  # the optima of siblings are their rooms' tests
def test_a_fitted_model_is_at_an_optimum(case):
    model = case.target(6)
    before = objective(model)
    fit(model, num_restarts=0)
    best = objective(model)
    assert best > before or case.frozen
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        kept = parameter.detach().clone()
        for scale in (1e-2, 1e-1):
            noise = torch.randn(kept.shape, generator=generator).to(kept)
            with torch.no_grad():
                parameter.copy_(kept + scale * noise.abs())
            assert objective(model) <= best + case.slack
        with torch.no_grad():
            parameter.copy_(kept)


@where(lambda case: case.takes_prior)
def test_fit_leaves_the_prior_as_it_is(case):
    priors = ModuleList(priors_of(case.prior()).values())
    before = snapshot(priors)
    parameters = [parameter.clone() for parameter in priors.parameters()]
    model = case.target(6)
    views = ModuleList(priors_of(model.prior).values())
    own = snapshot(views)
    fit(model, **BRIEF)
    model.posterior(FAMILY.inputs(3))
    assert_equal_bits(before, snapshot(priors))
    assert_equal_bits(own, snapshot(views))
    assert all(map(torch.equal, parameters, priors.parameters()))


@pytest.mark.gaussian
@on_every_model
def test_each_hyperprior_counts_once(case):
    """Also one of a module that mean and kernel share."""
    models = parts(case.target(3))
    assert any(list(model.named_priors()) for model in models) == case.hyperpriors
    for model in models:
        assert_each_hyperprior_counts_once(model)


def assert_each_hyperprior_counts_once(model):
    counted = [(module, id(prior)) for _, module, prior, _, _ in model.named_priors()]
    assert len(counted) == len(set(counted))
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    output = model(*model.train_inputs)
    likelihood = model.likelihood(output).log_prob(model.train_targets)
    added = sum(term.loss() for term in model.added_loss_terms())
    hyperpriors = {(m, id(p)): p.log_prob(get(m)).sum() for _, m, p, get, _ in model.named_priors()}
    expected = (likelihood + added + sum(hyperpriors.values())) / 3
    torch.testing.assert_close(mll(output, model.train_targets), expected)


def test_without_target_data_only_sources_can_be_fitted(case):
    model = case.target(0)
    before = snapshot(model)
    mll = fit(model, **BRIEF)
    assert mll.model is model
    if isinstance(model, JointTransferGP):  # tests/joint/test_joint.py says how
        assert all(tensor.isfinite().all() for tensor in model.parameters())
    else:
        assert_equal_bits(before, snapshot(model))


def test_with_nothing_to_fit_returns_at_once(representative):
    model = representative.target(4)
    before = snapshot(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    fit(model)
    assert_equal_bits(before, snapshot(model))


def test_frozen_parameters_stay(representative):
    model = representative.target(5)
    noises = [part.likelihood.noise_covar.raw_noise.requires_grad_(False) for part in parts(model)]
    kept = [noise.clone() for noise in noises]
    fit(model, **BRIEF)
    assert all(map(torch.equal, kept, noises))


def test_known_noise_is_not_fitted(representative):
    X, Y = FAMILY.target(5)
    model = representative.build(X, Y, train_Yvar=torch.full_like(Y, 0.3))
    before = model.likelihood.noise.clone()
    fit(model, **BRIEF)
    assert torch.equal(before, model.likelihood.noise)


def test_other_optimizers(representative):
    model = representative.target(5)
    before = objective(model)
    fit(model, optimizer=fit_gpytorch_mll_torch, optimizer_kwargs={"step_limit": 5})
    assert objective(model) > before


@pytest.mark.gaussian
@where(lambda case: not case.frozen and not case.sibling)
def test_one_attempt_starts_at_the_present_values(case):
    """An attempt is a start."""
    steps = {"optimizer_kwargs": {"options": {"maxiter": 5}}}
    attempted, started = case.target(5), case.target(5)
    before = objective(attempted)
    fit(attempted, max_attempts=1, **steps)
    fit(started, num_restarts=0, **steps)
    assert objective(attempted) > before
    assert objective(attempted) == pytest.approx(objective(started), rel=1e-4, abs=1e-4)


def test_optimizer_arguments(representative):
    model = representative.target(5)
    before, steps = objective(model), []
    options = {"options": {"maxiter": 3}, "callback": lambda *_: steps.append(1)}
    fit(model, num_restarts=0, optimizer_kwargs=options)
    assert objective(model) > before
    assert len(steps) in (3, 6)  # an average fits two models
