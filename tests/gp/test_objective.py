"""The closed-form log posterior against GPyTorch's, and its maximum against BoTorch's fit."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim.core import OptimizationResult
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior
from linear_operator.utils.errors import NanError, NotPSDError
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor
from torch.distributions import Normal
from torch.testing import assert_close

from botorch_transfer import ScaMLGP, SequentialHierarchicalGP, models
from botorch_transfer.gp import objective as target_fit
from botorch_transfer.gp.objective import (
    TargetObjective,
    fit_from_starts,
    minimize_batched,
    single_threaded_scipy,
)
from tests import fits
from tests.devices import waits
from tests.families import ShiftedSines
from tests.gp.gpytorchs import gpytorchs
from tests.models.contract import CASES, ModelCase

FAMILY = ShiftedSines()
SERVED = {
    *(models.BoostedHierarchicalGP, models.HyperpriorGP, models.MeanHierarchicalGP),
    *(models.RankWeightedGP, models.TwoStageTransferGP, ScaMLGP, SequentialHierarchicalGP),
}
SCAML, SHGP = (
    next(case for case in CASES if case.model_class is each)
    for each in (ScaMLGP, SequentialHierarchicalGP)
)
SERVED_CASES = [case for case in CASES if case.model_class in SERVED]
served = pytest.mark.parametrize("case", SERVED_CASES, ids=lambda case: case.name)
served_kinds = pytest.mark.parametrize(
    "case", [case for case in SERVED_CASES if not case.sibling], ids=lambda case: case.name
)


def likelihood_of(model: Any, kind: Any = ExactMarginalLogLikelihood) -> Any:
    return kind(model.likelihood, model).train()


def targets(batch: int, n: int = 5, same_inputs: bool = False) -> tuple[Tensor, Tensor]:
    """Draws a batch of targets."""
    members = [FAMILY.target(n, seed=100 if same_inputs else 100 + index) for index in range(batch)]
    X, Y = (torch.stack(part) for part in zip(*members, strict=True))
    return X, Y * FAMILY.tensor(range(1, batch + 1))[:, None, None]


def assert_equals_gpytorch(mll: ExactMarginalLogLikelihood, tolerance: float = 1e-8) -> None:
    """Compares values and gradients at parameters around the present ones."""
    for _, _, prior, _, _ in mll.model.named_priors():
        if isinstance(prior, LogNormalPrior):  # GPyTorch computes some of it in single precision
            prior.base_dist = Normal(prior.loc.double(), prior.scale.double())
    objective = TargetObjective.of(mll)
    fitted = {name: p for name, p in TargetObjective.params(mll.model).items() if p.is_fitted}
    parameters = [part.raw for part in fitted.values()]
    generator = torch.Generator().manual_seed(0)
    starts, expected, slopes = [], [], []
    for _ in range(3):
        for parameter in parameters:
            noise = torch.rand(parameter.shape, generator=generator, dtype=torch.double)
            parameter.data.add_(noise.to(parameter))
        starts.append(objective.read(mll))
        value, slope = gpytorchs(mll, fitted)
        expected.append(value)
        slopes.append(slope)
    theta = torch.cat(starts)
    # In another order, and without the first row: a start that has converged is left out.
    rows = torch.arange(len(theta), device=theta.device).flip(0)[:-1]
    value, gradient = objective(theta[rows], rows)
    close = {"rtol": 0.0, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(value, torch.cat(expected)[rows], **close)
    torch.testing.assert_close(gradient, torch.cat(slopes)[rows], **close)


# ------------------------------------------------------------------------------------------ values


@served
@pytest.mark.parametrize(("n", "known_noise"), [(1, True), (7, False)])
def test_equals_gpytorch(case: ModelCase, n: int, known_noise: bool) -> None:
    X, Y = FAMILY.target(n)
    Yvar = {"train_Yvar": 0.1 * Y.abs()} if known_noise else {}
    assert_equals_gpytorch(likelihood_of(case.build(X, Y, **Yvar)))


@pytest.mark.parametrize(("same_inputs", "known_noise"), [(False, False), (True, True)])
@served_kinds
def test_equals_gpytorch_for_a_batch(case: ModelCase, same_inputs: bool, known_noise: bool) -> None:
    X, Y = targets(3, same_inputs=same_inputs)
    Yvar = {"train_Yvar": 0.1 * Y.abs()} if known_noise else {}
    assert_equals_gpytorch(likelihood_of(case.build(X, Y, **Yvar)))


def _above(bound: float) -> GreaterThan:
    """A bound for the optimizer, and no transform."""
    return GreaterThan(bound, transform=None, initial_value=0.5)


KERNELS: dict[str, Callable[[], Any]] = {
    "one lengthscale": lambda: ScaleKernel(
        RBFKernel(lengthscale_constraint=_above(0.1)), outputscale_constraint=_above(0.1)
    ),
    "Matern, unscaled": lambda: MaternKernel(
        nu=1.5,
        ard_num_dims=2,
        lengthscale_prior=GammaPrior(torch.tensor([2.0, 3.0]), torch.tensor([4.0, 5.0])),
        lengthscale_constraint=_above(0.1),
    ),
    "BoTorch's default": lambda: get_covar_module_with_dim_scaled_prior(2),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", [SCAML, SHGP], ids=lambda case: case.name)
def test_equals_gpytorch_with_a_users_kernel(case: ModelCase, kernel: str) -> None:
    residual = KERNELS[kernel]().double()
    assert_equals_gpytorch(likelihood_of(case.target(5, covar_module=residual)))


@pytest.mark.parametrize("case", [SCAML, SHGP], ids=lambda case: case.name)
def test_frozen_parameters_count_and_stay(case: ModelCase) -> None:
    frozen = [p for p in case.target(5).parameters() if p.requires_grad]
    for index in range(len(frozen)):
        model = case.target(5)
        parameters = [p for p in model.parameters() if p.requires_grad]
        parameters[index].requires_grad_(False)
        kept = parameters[index].detach().clone()
        mll = likelihood_of(model)
        assert_equals_gpytorch(mll)
        parameters[index].data.copy_(kept)
        fit_from_starts(mll, num_restarts=1, seed=0)
        assert torch.equal(parameters[index], kept)
        pairs = zip(parameters, frozen, strict=True)
        assert not any(torch.equal(p, q) for p, q in pairs if p.requires_grad)


def test_members_may_share_what_is_frozen() -> None:
    X, Y = targets(2)
    likelihood = GaussianLikelihood(noise_constraint=_above(1e-4))
    frozen = likelihood.double().requires_grad_(False)
    assert_equals_gpytorch(likelihood_of(SCAML.build(X, Y, likelihood=frozen)))


# ------------------------------------------------------------------------------------ which models


def without_botorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("BoTorch's optimizer was called")

    monkeypatch.setattr(target_fit, "fit_gpytorch_mll_scipy", fail)


def log_posterior(model: Any) -> Tensor:
    """The log posterior in nats."""
    return fits.log_posterior(model) * model.train_targets.shape[-1]


@served
def test_models_are_fitted_in_closed_form(case: ModelCase, monkeypatch) -> None:
    without_botorch(monkeypatch)
    for known_noise in (False, True):
        X, Y = FAMILY.target(6)
        Yvar = {"train_Yvar": torch.full_like(Y, 0.3)} if known_noise else {}
        model = case.build(X, Y, **Yvar)
        before = log_posterior(model)
        fit_gpytorch_mll(likelihood_of(model))
        assert log_posterior(model) > before
        assert not model.training


def of_logarithm() -> RBFKernel:
    """A lengthscale whose hyperprior is one of the logarithm, under the usual name."""
    kernel = RBFKernel(lengthscale_constraint=_above(0.1))
    kernel.register_prior(
        "lengthscale_prior",
        LogNormalPrior(0.0, 1.0),
        lambda module: module.lengthscale.log() + 2.0,
        lambda module, value: module._set_lengthscale((value - 2.0).exp().clamp_min(0.1)),
    )
    return kernel


class DoubledMLL(ExactMarginalLogLikelihood):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().forward(*args, **kwargs)


class PenalizedScaMLGP(ScaMLGP):
    """A model of somebody's own that fits more than the likelihood."""

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self._set_loss_term(-self.weights.square().sum())
        return super().forward(x)


def scaml(**options: Any) -> Any:
    return SCAML.target(5, **options)


class OwnPrior(GammaPrior):
    """A hyperprior of somebody's own: what its density is, only it knows."""


def with_prior_of_weights() -> Any:
    model = scaml()
    model.task_weights.register_prior(
        "weights_prior",
        OwnPrior(2.0, 1.0).double().to(FAMILY.device),
        lambda m: m.weights,
        lambda m, v: None,
    )
    return model


def with_another_prior() -> Any:
    model = scaml()
    prior = GammaPrior(2.0, 1.0).double().to(FAMILY.device)
    kernel = model.residual_covar_module
    kernel.register_prior("another_prior", prior, lambda m: m.outputscale, lambda m, v: None)
    return model


def with_more_noise() -> FixedNoiseGaussianLikelihood:
    noise = torch.full((5,), 0.1).double()
    return FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True).double()


USERS_OWN: dict[str, Callable[[], ExactMarginalLogLikelihood]] = {
    "softplus": lambda: likelihood_of(scaml(covar_module=ScaleKernel(RBFKernel()).double())),
    "another hyperprior": lambda: likelihood_of(with_another_prior()),
    "own hyperprior": lambda: likelihood_of(with_prior_of_weights()),
}


@pytest.mark.parametrize("own", USERS_OWN)
def test_equals_gpytorch_with_a_users_constraint_or_hyperprior(own: str) -> None:
    assert_equals_gpytorch(USERS_OWN[own]())


UNSERVED: dict[str, Callable[[], ExactMarginalLogLikelihood]] = {
    "hyperprior of a logarithm": lambda: likelihood_of(scaml(covar_module=of_logarithm().double())),
    "kernel": lambda: likelihood_of(scaml(covar_module=(RBFKernel() + LinearKernel()).double())),
    "some inputs": lambda: likelihood_of(scaml(covar_module=RBFKernel(active_dims=[0]).double())),
    "likelihood": lambda: likelihood_of(scaml(likelihood=with_more_noise())),
    "likelihood that is maximized": lambda: likelihood_of(scaml(), DoubledMLL),
    "leave-one-out": lambda: likelihood_of(scaml(), LeaveOneOutPseudoLikelihood),
    "loss term": lambda: likelihood_of(PenalizedScaMLGP(*FAMILY.target(5), SCAML.prior())),
}


@pytest.mark.parametrize("other", UNSERVED)
def test_anything_else_is_fitted_by_autograd(other: str) -> None:
    mll = UNSERVED[other]()
    assert TargetObjective.of(mll) is None

    def value() -> Tensor:
        mll.train()
        return mll(mll.model(*mll.model.train_inputs), mll.model.train_targets).detach()

    before = value()
    fit_from_starts(mll, num_restarts=0, seed=0, options={"maxiter": 10})
    assert value() > before


@pytest.mark.parametrize(
    "asked",
    [{"options": {"maxcor": 5}}, {"bounds": {}}, {"method": "L-BFGS-B"}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_only_botorchs_optimizer_can_do(asked: dict[str, Any], monkeypatch) -> None:
    calls: list[dict[str, Any]] = []

    def optimize(mll: ExactMarginalLogLikelihood, **given: Any) -> OptimizationResult:
        calls.append(given)
        return fit_gpytorch_mll_scipy(mll, **given)

    monkeypatch.setattr(target_fit, "fit_gpytorch_mll_scipy", optimize)
    model, limits = scaml(), {"maxiter": 2}
    asked = {**asked, "options": {**limits, **asked.get("options", {})}}
    fit_gpytorch_mll(likelihood_of(model), num_restarts=2, optimizer_kwargs=asked)
    assert len(calls) == 3
    assert all(given.items() >= asked.items() for given in calls)


# ----------------------------------------------------------------------------------------- optimum


def duplicated() -> tuple[Tensor, Tensor]:
    X, Y = FAMILY.target(4)
    return torch.cat([X, X]), torch.cat([Y, Y])


DATA: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "one": lambda: FAMILY.target(1),
    "two": lambda: FAMILY.target(2),
    "several": lambda: FAMILY.target(9),
    "constant": lambda: (FAMILY.inputs(5), torch.full((5, 1), 52.0).to(FAMILY.inputs(5))),
    "duplicated": duplicated,
}


@pytest.mark.parametrize(("case", "data"), [*((SCAML, data) for data in DATA), (SHGP, "several")])
def test_the_optimum_is_that_of_botorchs_fit(case: ModelCase, data: str) -> None:
    ours, theirs = (case.build(*DATA[data]()) for _ in range(2))
    fit_from_starts(likelihood_of(ours), num_restarts=1, seed=0)
    fit_from_starts(likelihood_of(theirs), num_restarts=1, seed=0, method="L-BFGS-B")
    assert log_posterior(ours) >= log_posterior(theirs) - 0.01


@pytest.mark.parametrize("by_autograd", [False, True])
@pytest.mark.parametrize("maxiter", [1, 4])
def test_the_steps_are_those_of_botorchs_fit(maxiter: int, by_autograd: bool, monkeypatch) -> None:
    options = {"num_restarts": 2, "seed": 0}
    ours, theirs = (scaml() for _ in range(2))
    if by_autograd:
        monkeypatch.setattr(TargetObjective, "of", lambda mll: None)
    fit_from_starts(likelihood_of(ours), **options, options={"maxiter": maxiter})
    fit_from_starts(likelihood_of(theirs), **options, options={"maxiter": maxiter, "maxcor": 10})
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("same_inputs", [False, True])
@pytest.mark.parametrize("case", [SCAML, SHGP], ids=lambda case: case.name)
def test_members_of_a_batch_are_fitted_by_themselves(case: ModelCase, same_inputs: bool) -> None:
    X, Y = targets(3, n=6, same_inputs=same_inputs)
    batch = case.build(X, Y)
    fit_from_starts(likelihood_of(batch), num_restarts=2, seed=0)
    found = log_posterior(batch)
    for index in range(3):
        single = case.build(X[index], Y[index])
        fit_from_starts(likelihood_of(single), num_restarts=2, seed=0)
        # The draws are others.
        assert float(found[index]) == pytest.approx(float(log_posterior(single)), abs=0.1)


@pytest.mark.filterwarnings("ignore:The model inputs are of type")
@pytest.mark.parametrize("case", [SCAML, SHGP], ids=lambda case: case.name)
def test_single_precision(case: ModelCase) -> None:
    single, double = ShiftedSines(dtype=torch.float), FAMILY
    models = []
    for family in (single, double):
        X, Y = single.target(6)
        prior = case.pretrain(family.sources(), input_transform=None)
        models.append(case.build(X.to(family.dtype), Y.to(family.dtype), prior))
        fit_from_starts(likelihood_of(models[-1]), num_restarts=2, seed=0)
    ours, expected = models
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float}
    assert float(log_posterior(ours)) == pytest.approx(float(log_posterior(expected)), abs=0.05)


def record_evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Records the parameters of each evaluation, one row for each start."""
    evaluated: list[Tensor] = []
    evaluate = TargetObjective.__call__

    def recorded(self: TargetObjective, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        evaluated.append(theta)
        return evaluate(self, theta, rows)

    monkeypatch.setattr(TargetObjective, "__call__", recorded)
    return evaluated


def test_evaluations_end_where_nothing_is_gained(monkeypatch) -> None:
    """Starts that have converged are no longer evaluated, and the last one stops early, too."""
    evaluated = record_evaluations(monkeypatch)
    early, late = (SCAML.target(9) for _ in range(2))
    fit_gpytorch_mll(likelihood_of(early))
    counts = [len(theta) for theta in evaluated]
    assert counts[0] == 1 + early.num_restarts > min(counts)
    monkeypatch.setattr(target_fit, "CONVERGED", 1e-6)
    evaluated.clear()
    fit_gpytorch_mll(likelihood_of(late))
    assert sum(counts) < 0.9 * sum(map(len, evaluated))
    assert float(log_posterior(early)) == pytest.approx(float(log_posterior(late)), abs=0.01)


@pytest.mark.parametrize("case", [SCAML, SHGP], ids=lambda case: case.name)
def test_a_graph_of_the_inputs_does_no_harm(case: ModelCase) -> None:
    X, Y = FAMILY.target(5)
    models = [case.build(inputs, Y) for inputs in (X, X.clone().requires_grad_())]
    for model in models:
        fit_from_starts(likelihood_of(model), num_restarts=1, seed=0)
    assert all(map(torch.equal, *(model.parameters() for model in models)))


def test_fits_repeat_and_follow_the_seed(monkeypatch) -> None:
    starts = record_evaluations(monkeypatch)
    found, random_state = [], torch.get_rng_state()
    for seed in (3, 3, 4):
        starts.clear()
        model = SCAML.target(6)
        fit_gpytorch_mll(likelihood_of(model), num_restarts=2, seed=seed)
        found.append((starts[0], torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(map(torch.equal, found[0], found[1]))
    present, drawn = (found[0][0] == found[2][0]).tensor_split([1])
    assert present.all()
    assert not drawn.any()


def test_a_timeout_stops_all_starts() -> None:
    stopped, stepped = scaml(), scaml()
    fit_gpytorch_mll(likelihood_of(stopped), optimizer_kwargs={"timeout_sec": 0.0})
    fit_gpytorch_mll(likelihood_of(stepped), optimizer_kwargs={"options": {"maxiter": 1}})
    for left, right in zip(stopped.parameters(), stepped.parameters(), strict=True):
        assert torch.equal(left, right)


# ---------------------------------------------------------------------------------------- breakdown


def break_down(monkeypatch: pytest.MonkeyPatch, is_broken: Callable[[Tensor], Tensor]) -> None:
    """Has the log posterior of some rows be undefined."""
    evaluate = TargetObjective.__call__

    def broken(self: TargetObjective, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = evaluate(self, theta, rows)
        return value.masked_fill(is_broken(rows), torch.nan), gradient

    monkeypatch.setattr(TargetObjective, "__call__", broken)


def test_a_start_that_breaks_down_is_left_out(monkeypatch) -> None:
    without_botorch(monkeypatch)
    break_down(monkeypatch, lambda rows: rows == 0)
    model = scaml()
    before = log_posterior(model)
    fit_gpytorch_mll(likelihood_of(model), num_restarts=2)
    assert log_posterior(model) > before


def test_more_starts_are_drawn_where_a_member_of_a_batch_breaks_down(monkeypatch) -> None:
    break_down(monkeypatch, lambda rows: (rows % 2 == 1) & (rows < 4))
    model = SCAML.build(*targets(2))
    before = log_posterior(model)
    fit_gpytorch_mll(likelihood_of(model), num_restarts=1)
    assert (log_posterior(model) > before).all()


def test_an_error_where_no_start_leads_anywhere(monkeypatch) -> None:
    break_down(monkeypatch, lambda rows: rows >= 0)
    model = scaml()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ModelFittingError, match="The fit of ScaMLGP fails from each start"):
        fit_gpytorch_mll(likelihood_of(model), num_restarts=1)
    assert all(map(torch.equal, before, model.parameters()))


def test_what_members_of_a_batch_share_is_fitted_by_autograd() -> None:
    X, Y = targets(2)
    shared = GaussianLikelihood(noise_constraint=_above(1e-4)).double()
    assert TargetObjective.of(likelihood_of(SCAML.build(X, Y, likelihood=shared))) is None


def test_a_sum_of_the_users_kernels_is_all_residual() -> None:
    kernel = RBFKernel() + MaternKernel()
    assert target_fit._residual_and_sources(kernel) == (kernel, None)


def test_a_value_at_a_bound_has_a_finite_parameter() -> None:
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-4))
    part = target_fit.Param(likelihood.noise_covar, "noise")
    part.write(torch.tensor([[1e-4]], dtype=torch.double))
    assert part.raw.isfinite().all()


# ------------------------------------------------------------------------------------ the optimizer


def test_batched_lbfgs_within_bounds():
    evaluated = []

    def parabolas(x, rows):
        evaluated.append(rows.tolist())
        value = (x - rows.unsqueeze(-1)).square().sum(-1)
        value[rows == 3] = torch.nan  # nowhere defined
        return value, 2 * (x - rows.unsqueeze(-1))

    starts, bounds = torch.zeros(4, 2).double(), torch.tensor([[-1.0, -1.0], [1.5, 9.0]])
    x, value = minimize_batched(parabolas, starts, bounds, max_iter=50)
    expected = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.5, 2.0]]).double()
    torch.testing.assert_close(x[:3], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(value, torch.tensor([0.0, 0.0, 0.25, torch.inf]).double())
    assert evaluated[0] == [0, 1, 2, 3]
    assert 0 not in evaluated[-1]  # what has converged is left out


def test_a_start_far_behind_one_that_has_converged_ends():
    """Of the same member: others have optima of their own."""

    def valleys(x, rows):  # one start of each member descends for long
        evaluated.append(rows.tolist())
        crawls, above = (rows == 1) | (rows == 2), 50.0 * (rows == 2) + 100.0 * (rows == 3)
        value, slope = x[:, 0].square(), 2 * x[:, 0]
        value = torch.where(crawls, (1 - x[:, 0] / 50).exp(), value) + above
        return value, torch.where(crawls, -(1 - x[:, 0] / 50).exp() / 50, slope).unsqueeze(-1)

    starts = torch.tensor([[1.0], [1.0], [1.0], [2.0]]).double()
    bounds = torch.tensor([[-2e3], [2e3]])
    ends = []
    for margin in (np.inf, 20.0):
        evaluated: list[list[int]] = []
        ends.append(minimize_batched(valleys, starts, bounds, 50, 1e-9, None, 0.0, margin, 2))
        counts = [sum(row in rows for rows in evaluated) for row in range(4)]
        ends[-1] += (counts,)
    (x, value, counts), (x_left, value_left, left) = ends
    assert [left[i] for i in (0, 1, 3)] == [counts[i] for i in (0, 1, 3)]
    assert left[2] < counts[2] / 2
    assert 50 < value_left[2] < 50 + value[1] + 3
    torch.testing.assert_close(x_left[[0, 1, 3]], x[[0, 1, 3]])
    torch.testing.assert_close(value_left[[0, 1, 3]], value[[0, 1, 3]])


def test_an_evaluation_takes_a_transfer_each_way(device):
    evaluated = []

    def parabolas(x, rows):
        assert x.device == rows.device == starts.device
        evaluated.append(len(rows))
        return (x - 1).square().sum(-1), 2 * (x - 1)

    starts, bounds = torch.zeros(3, 2).double().to(device), torch.tensor([[-5.0] * 2, [5.0] * 2])
    found = waits(lambda: minimize_batched(parabolas, starts, bounds, max_iter=9)).total()
    assert found == 1 + 2 * len(evaluated)  # at first, the starts come from the device


PROGRAM = """
import resource, torch
from botorch_transfer.gp.objective import keep_freed_memory

def evaluate():
    return [torch.ones(2**19, dtype=torch.double) for _ in range(10)]  # 40 MiB, 10,240 pages

def page_faults():
    evaluate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        evaluate()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults())
keep_freed_memory()
print(page_faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's allocator")
def test_pages_are_paid_for_once_and_not_each_time() -> None:
    # With settings of its own, as dask makes them, the allocator does not adapt.
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, check=True, env=environment)
    each_time, once = map(int, run.stdout.split())
    assert once < each_time / 10


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_limits_are_given_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(ZeroDivisionError), single_threaded_scipy():
            raise ZeroDivisionError
        assert blas_threads() == {2}
        with single_threaded_scipy():
            with single_threaded_scipy():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_limits_are_given_back_where_fits_overlap() -> None:
    # The first one in is the first one out.
    first_in, second_in, first_out = Event(), Event(), Event()

    def first() -> None:
        with single_threaded_scipy():
            first_in.set()
            second_in.wait()
        first_out.set()

    def second() -> None:
        first_in.wait()
        with single_threaded_scipy():
            second_in.set()
            first_out.wait()

    before, threads = blas_threads(), [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blas_threads() == before


def wavy(n: int = 12) -> tuple[Tensor, Tensor]:
    X = torch.linspace(0, 1, n, dtype=torch.double).unsqueeze(-1)
    return X, (12 * X).sin() + 0.3 * (40 * X).cos()


def build(X: Tensor, Y: Tensor) -> ExactMarginalLogLikelihood:
    kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 3.0))
    model = SingleTaskGP(X, Y, covar_module=kernel, outcome_transform=None)
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def test_one_start_is_botorchs_fit() -> None:
    ours, theirs = build(*wavy()), build(*wavy())
    fit_from_starts(ours, num_restarts=0, seed=0)
    fit_gpytorch_mll_scipy(theirs)
    found, expected = (fits.log_posterior(mll.model) for mll in (ours, theirs))
    assert_close(found, expected, rtol=0, atol=1e-4)


def test_the_best_of_several_optima_is_kept() -> None:
    # From a long lengthscale, quick waves look like noise, and that is an optimum.
    X = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
    alone, several = (build(X, (35 * X).sin()) for _ in range(2))
    for mll in (alone, several):
        mll.model.covar_module.lengthscale = 50.0
    fit_from_starts(alone, num_restarts=0, seed=0)
    fit_from_starts(several, num_restarts=3, seed=0)
    assert fits.log_posterior(several.model) > fits.log_posterior(alone.model) + 0.1


def test_a_timeout_stops_a_start() -> None:
    stopped, full, before = build(*wavy()), build(*wavy()), fits.log_posterior(build(*wavy()).model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_from_starts(stopped, num_restarts=1, seed=0, timeout_sec=0.0)
    fit_from_starts(full, num_restarts=1, seed=0, timeout_sec=600.0)  # within its time, it goes on
    assert before <= fits.log_posterior(stopped.model) < fits.log_posterior(full.model) - 0.01


def test_a_callback_is_of_botorchs_optimizer() -> None:
    mll, steps = build(*wavy()), []

    def callback(parameters: dict[str, Tensor], result: OptimizationResult) -> None:
        assert parameters.keys() == dict(mll.named_parameters()).keys()
        steps.append(result.step)

    fit_from_starts(mll, num_restarts=1, seed=0, options={"maxiter": 2}, callback=callback)
    assert steps == [1, 2, 1, 2]


CHOLESKY = torch.linalg.LinAlgError("linalg.cholesky: the input is not positive-definite")
BREAKDOWNS = [NotPSDError("broken"), NanError("broken"), CHOLESKY]


@pytest.mark.parametrize("error", BREAKDOWNS)
def test_a_start_with_an_error_is_left_out(error: Exception, monkeypatch) -> None:
    mll, before = build(*wavy()), fits.log_posterior(build(*wavy()).model)
    calls, forward = [], ExactMarginalLogLikelihood.forward

    def fail_at_first(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(args)
        if len(calls) == 1:
            raise error
        return forward(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(ExactMarginalLogLikelihood, "forward", fail_at_first)
        fit_from_starts(mll, num_restarts=2, seed=0, options={"maxiter": 5})
    assert len(calls) > 3
    assert fits.log_posterior(mll.model) > before
