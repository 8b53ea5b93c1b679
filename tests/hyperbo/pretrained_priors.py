"""Pre-trained priors for the tests."""

import torch
from gpytorch.kernels import PeriodicKernel, ScaleKernel
from gpytorch.means import LinearMean

from botorch_transfer.pretraining import PretrainedPrior
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=61)
PRESETS = {
    "hyperbo": lambda: PretrainedPrior.hyperbo(2, hidden=(6, 4)),
    "fsbo": lambda: PretrainedPrior.fsbo(2, hidden=(6, 4), kernel="matern32"),
    "ablr": lambda: PretrainedPrior.ablr(2, hidden=(6, 4)),
    "stationary": lambda: PretrainedPrior.stationary(2, kernel="rbf", mean="zero"),
}


def fit(prior, **options):
    return prior.fit(FAMILY.sources(), **{"steps": 15, **options})


def own_modules():
    return LinearMean(2), ScaleKernel(PeriodicKernel(ard_num_dims=2))


def assert_same(left, right):
    for tensor, other in ((left.mean(TEST_X), right.mean(TEST_X)), (left.noise, right.noise)):
        assert torch.equal(tensor, other)
    assert torch.equal(left.covariance(TEST_X), right.covariance(TEST_X))
    assert left.learning_curve == right.learning_curve
