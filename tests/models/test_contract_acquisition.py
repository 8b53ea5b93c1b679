"""The contract of every model, 2: acquisition functions, optimized by ``optimize_acqf``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    LogNoisyExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qMaxValueEntropy,
    qNegIntegratedPosteriorVariance,
    qUpperConfidenceBound,
)
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy
from botorch.acquisition.predictive_entropy_search import qPredictiveEntropySearch
from botorch.exceptions.errors import UnsupportedError
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

from botorch_transfer.average.base import AveragedGP
from tests.families import ShiftedSines
from tests.models.contract import (
    BUDGET,
    MINIMAL,
    ModelCase,
    bounds,
    flat_acquisitions,
    raw_transform,
    to_raw,
    variants,
)

FAMILY = ShiftedSines()


def _sampler() -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([16]), seed=0)


def _best(model: Any) -> Tensor:
    return model.posterior(FAMILY.target(4)[0]).mean.max().detach()


def _optima(model: Any) -> tuple[Tensor, Tensor]:
    """Optima of a few draws from the posterior over a finite set."""
    X = FAMILY.inputs(40, seed=7)
    draws = SobolQMCNormalSampler(torch.Size([4]), seed=0)(model.posterior(X)).detach()
    values, indices = draws.max(dim=-2)
    return X[indices.squeeze(-1)], values


# These ask a model for its posterior alone, as others of BoTorch do.
OF_POSTERIORS: dict[str, Callable[[Any], AcquisitionFunction]] = {
    "LogEI": lambda model: LogExpectedImprovement(model, _best(model)),
    "qLogEI": lambda model: qLogExpectedImprovement(model, _best(model), _sampler()),
    "qLogNEI": lambda model: qLogNoisyExpectedImprovement(model, FAMILY.target(4)[0], _sampler()),
    "qUCB": lambda model: qUpperConfidenceBound(model, 9.0, _sampler()),
}
# These condition the model on what they expect to see.
LOOK_AHEAD: dict[str, Callable[[Any], AcquisitionFunction]] = {
    "qKG": lambda model: qKnowledgeGradient(model, num_fantasies=3),
    "qMES": lambda model: qMaxValueEntropy(model, FAMILY.inputs(40), 2, 3, 8),
    "GIBBON": lambda model: qLowerBoundMaxValueEntropy(model, FAMILY.inputs(40), 3),
    "JES": lambda model: qJointEntropySearch(model, *_optima(model)),
    "JES, Monte Carlo": lambda model: qJointEntropySearch(
        model, *_optima(model), estimation_type="MC", num_samples=8
    ),
    "PES": lambda model: qPredictiveEntropySearch(model, _optima(model)[0]),
    "NIPV": lambda model: qNegIntegratedPosteriorVariance(model, FAMILY.inputs(8)),
}
EVERYTHING = OF_POSTERIORS | LOOK_AHEAD
GREEDY = ("qMES", "GIBBON")  # BoTorch fills these batches one by one
# BoTorch's derivative of PES is NaN wherever one of its probabilities underflows, and that of NIPV
# leaves out how the covariance moves, which makes the line search long.
WITHOUT_GRADIENT = ("NIPV", "PES")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has known numerical issues"),
    # Few samples of a confident model may not improve anywhere.
    pytest.mark.filterwarnings("ignore:All acquisition values for raw sampled points"),
]


def _assert_optimized(case: ModelCase, name: str, q: int = 1) -> None:
    acquisition = EVERYTHING[name](case.target(4))
    X, value = optimize_acqf(
        acquisition,
        bounds(),
        q=q,
        num_restarts=1,
        raw_samples=4,
        sequential=q > 1 and name in GREEDY,
        options={"maxiter": 1, "with_grad": name not in WITHOUT_GRADIENT},
    )
    assert X.shape == (q, FAMILY.dim)
    assert ((X >= 0) & (X <= 1)).all()
    assert value.isfinite().all()
    if name != "qKG":  # its own optimizer drops the fantasy points
        assert acquisition(X[:1].unsqueeze(-3)).isfinite().all()


# UCB is in test_contract_few_points.py, for all models.
@variants("name", inexact=["LogEI"])
def test_single_candidates(case, name):
    _assert_optimized(case, name)


# Two candidates of a batch may coincide, which makes their joint posterior singular.
@pytest.mark.filterwarnings("ignore:A not p.d.", "ignore:Optimization failed")
@variants("name", representatives=["qLogNEI"], inexact=["qKG", "qMES", "JES"])
def test_batches_of_candidates(case, name):
    _assert_optimized(case, name, q=2)


# With pending points, PES fails on a plain SingleTaskGP of like certainty, too.
@pytest.mark.filterwarnings("ignore:A not p.d.", "ignore:Optimization failed")
@pytest.mark.parametrize("name", [name for name in EVERYTHING if name != "PES"])
def test_all_acquisitions(name):
    _assert_optimized(MINIMAL, name, q=2 if name.startswith("q") else 1)


@pytest.mark.gaussian  # BoTorch's ensembles don't support look-ahead acquisitions
@variants("name", representatives=["qKG", "JES"], inexact=["LogEI", "qLogNEI", "qMES", "GIBBON"])
def test_derivatives_of_acquisitions(case, name):
    acquisition = EVERYTHING[name](case.target(4))
    q = 4 if name == "qKG" else 1
    X = FAMILY.inputs(3, q, seed=5).requires_grad_()
    value = acquisition(X)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    step = 1e-6 * torch.randn_like(X)
    with torch.no_grad():
        change = (acquisition(X + step) - acquisition(X - step)) / 2
    expected = (gradient * step).sum(dim=(-2, -1))
    scale = float(gradient.abs().max()) * 1e-6
    torch.testing.assert_close(change, expected, rtol=1e-2, atol=1e-2 * scale + 1e-14)


@variants("name, n", representatives=[("LogEI", 0), ("qUCB", 2), ("qKG", 0)])
def test_first_steps(case, name, n):
    acquisition = EVERYTHING[name](case.target(n))
    with flat_acquisitions(case, n):
        X, value = optimize_acqf(acquisition, bounds(), q=1, **BUDGET)
    assert X.isfinite().all()
    assert value.isfinite().all()


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *((name, 0) for name in ("qLogNEI", *LOOK_AHEAD)),
        *((name, 4) for name in ("JES, Monte Carlo", *WITHOUT_GRADIENT)),
    ],
)
def test_values(inexact, name, n):
    acquisition = EVERYTHING[name](inexact.target(n))
    assert acquisition(FAMILY.inputs(3, 4 if name == "qKG" else 1, seed=5)).isfinite().all()


# Without JES, which transforms the inputs of conditioned models twice, also with a SingleTaskGP.
ON_RAW_INPUTS: dict[str, Callable[..., AcquisitionFunction]] = {
    "qKG": lambda model, to: qKnowledgeGradient(model, num_fantasies=3),
    "GIBBON": lambda model, to: qLowerBoundMaxValueEntropy(model, to(FAMILY.inputs(40)), 3),
    "NIPV": lambda model, to: qNegIntegratedPosteriorVariance(model, to(FAMILY.inputs(8))),
}


@pytest.mark.parametrize("name", ON_RAW_INPUTS)
def test_values_on_raw_inputs(representative, name):
    """They are those of the same model in the unit cube."""
    X, Y = FAMILY.target(4)
    prior = representative.raw_prior()
    raw_model = representative.build(to_raw(X), Y, prior, input_transform=raw_transform())
    points = FAMILY.inputs(3, 4 if name == "qKG" else 1, seed=5)
    values = []
    for model, to in ((raw_model, to_raw), (representative.target(4), lambda X: X)):
        torch.manual_seed(0)
        values.append(ON_RAW_INPUTS[name](model, to)(to(points)))
    torch.testing.assert_close(*values, rtol=1e-3, atol=1e-3)


def test_analytic_noisy_improvement(representative):
    X, Y = FAMILY.target(4)
    model = representative.build(X, Y, train_Yvar=torch.full_like(Y, 0.1))
    if isinstance(model, AveragedGP):
        with pytest.raises(UnsupportedError, match="Model is not a `SingleTaskGP`"):
            LogNoisyExpectedImprovement(model, X, num_fantasies=4)
        return
    acquisition = LogNoisyExpectedImprovement(model, X, num_fantasies=4)
    candidate, value = optimize_acqf(acquisition, bounds(), q=1, **BUDGET)
    assert candidate.shape == (1, FAMILY.dim)
    assert value.isfinite()
