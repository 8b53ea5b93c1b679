"""The contract of every model, 2: several outcomes and constraints, in a ``ModelListGP``."""

from copy import deepcopy

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement, qUpperConfidenceBound
from botorch.acquisition.analytic import LogConstrainedExpectedImprovement
from botorch.acquisition.multi_objective import (
    ExpectedHypervolumeImprovement,
    IdentityMCMultiOutputObjective,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.optim import optimize_acqf
from botorch.sampling.list_sampler import ListSampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from gpytorch.mlls import SumMarginalLogLikelihood

from tests.families import OFFSET, SCALE, ShiftedSines
from tests.fits import fit_model
from tests.models.contract import BRIEFLY, BUDGET, MINIMAL, bounds

FAMILY = ShiftedSines()
REFERENCE = FAMILY.tensor([OFFSET - 2 * SCALE, OFFSET - 2 * SCALE])

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has known numerical issues"),
    # The joint posterior of a candidate on top of a baseline point is singular.
    pytest.mark.filterwarnings("ignore:A not p.d."),
]


@pytest.fixture
def models(inexact):
    return models_of(inexact)


def models_of(case):
    """Two objectives and a constraint, each with a model and data of its own."""
    X, Y = FAMILY.target(4)
    first = case.build(X, Y)
    second = case.build(X, 2 * OFFSET - Y)
    constraint = case.build(X[:3], Y[:3])
    return ModelListGP(first, second, constraint)


def _sampler(seed: int = 0) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([8]), seed=seed)


def _partitioning(model):
    Y = model.posterior(FAMILY.target(4)[0]).mean[:, :2].detach()
    return NondominatedPartitioning(REFERENCE, Y)


CONSTRAINTS = [lambda Z: OFFSET - Z[..., 2]]
OBJECTIVE = IdentityMCMultiOutputObjective(outcomes=[0, 1])
CONSTRAINED = {"objective": OBJECTIVE, "constraints": CONSTRAINTS}
X_BASELINE = FAMILY.target(4)[0]
FIRST = GenericMCObjective(lambda Z, X=None: Z[..., 0])
EVERYTHING = {
    "qLogNEHVI": lambda model: qLogNoisyExpectedHypervolumeImprovement(
        model, REFERENCE, X_BASELINE, _sampler(), prune_baseline=True, **CONSTRAINED
    ),
    "EHVI": lambda model: ExpectedHypervolumeImprovement(
        ModelListGP(*model.models[:2]), REFERENCE.tolist(), _partitioning(model)
    ),
    "constrained qLogEI": lambda model: qLogExpectedImprovement(
        model, OFFSET, _sampler(), objective=FIRST, constraints=CONSTRAINTS
    ),
    "LogCEI": lambda model: LogConstrainedExpectedImprovement(
        model, OFFSET, objective_index=0, constraints={2: [OFFSET, None]}
    ),
    "scalarized qUCB": lambda model: qUpperConfidenceBound(
        model, 4.0, _sampler(), objective=LinearMCObjective(FAMILY.tensor([1.0, 0.5, 0.0]))
    ),
}
ANALYTIC = ("EHVI", "LogCEI")


def test_several_outcomes(models):
    _assert_optimized("qLogNEHVI", models)


@pytest.mark.parametrize("name", EVERYTHING)
def test_several_outcomes_in_all_ways(name):
    _assert_optimized(name, models_of(MINIMAL))


def _assert_optimized(name, models):
    acquisition = EVERYTHING[name](models)
    q = 1 if name in ANALYTIC else 2
    X, value = optimize_acqf(acquisition, bounds(), q=q, **BUDGET)
    assert X.shape == (q, FAMILY.dim)
    assert value.isfinite().all()
    torch.testing.assert_close(acquisition(X.unsqueeze(0)).squeeze(), value.squeeze())


def test_list_has_the_models_posteriors(models):
    X = FAMILY.inputs(3, 2)
    joint = models.posterior(X)
    for index, model in enumerate(models.models):
        torch.testing.assert_close(joint.mean[..., index : index + 1], model.posterior(X).mean)
        torch.testing.assert_close(joint.variance[..., [index]], model.posterior(X).variance)


def test_fits_as_a_list(models):
    twins = deepcopy(models).models
    fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models), **BRIEFLY)
    for model, twin in zip(models.models, twins, strict=True):
        fit_model(twin, **BRIEFLY)
        X = FAMILY.inputs(3)
        torch.testing.assert_close(model.posterior(X).mean, twin.posterior(X).mean)


def test_conditions_and_fantasizes_as_a_list(models):
    X = FAMILY.inputs(2, seed=4)
    models.posterior(X)
    fantasies = models.fantasize(X, ListSampler(_sampler(0), _sampler(1), _sampler(2)))
    posterior = fantasies.posterior(FAMILY.inputs(3))
    assert posterior.mean.shape == (8, 3, 3)
    Y = torch.cat([FAMILY.value(X)] * 3, dim=-1)
    conditioned = models.condition_on_observations([X] * 3, Y)
    near = conditioned.posterior(X).variance
    assert (near < models.posterior(X).variance).all()
