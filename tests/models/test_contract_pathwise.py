"""The contract of every model, 2: functions drawn from the posterior."""

from functools import partial

import pytest
import torch
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import get_optimal_samples
from botorch.models import ModelListGP
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model

from tests.families import ShiftedSines
from tests.gp.drawn_functions import assert_moments
from tests.models.contract import BUDGET, bounds, raw_transform, to_raw, where

pytestmark = pytest.mark.gaussian

FAMILY = ShiftedSines()
NUM_PATHS = 600
# The error of random features falls with the root of their number.
ACCURATE = partial(draw_kernel_feature_paths, num_features=1024)


def assert_moments_of_paths(paths, model, X, tolerance=0.13):
    samples = paths(X)
    assert len(samples) == NUM_PATHS
    assert_moments(samples, model.posterior(X), tolerance)


def draw(model, num=NUM_PATHS, prior_sampler=ACCURATE):
    return draw_matheron_paths(model, torch.Size([num]), prior_sampler=prior_sampler)


def test_moments_of_paths(case):
    model = case.target(4)
    assert_moments_of_paths(draw(model), model, FAMILY.inputs(5, seed=21))


def test_moments_of_paths_without_points(representative):
    model = representative.target(0)
    assert_moments_of_paths(draw(model), model, FAMILY.inputs(5, seed=21))


def test_moments_with_known_noise_on_raw_inputs(representative):
    X, Y = FAMILY.target(4)
    noise = torch.full_like(Y, 4.0)
    model = representative.build(
        to_raw(X), Y, representative.raw_prior(), train_Yvar=noise, input_transform=raw_transform()
    )
    assert_moments_of_paths(draw(model), model, to_raw(FAMILY.inputs(5, seed=21)))


@where(lambda case: case.interpolates and not case.sibling)
def test_paths_pass_through_precise_observations(case):
    X, Y = FAMILY.target(4)
    model = case.build(X, Y, train_Yvar=torch.full_like(Y, 1e-3))
    samples = draw_matheron_paths(model, sample_shape=torch.Size([10]))(X)
    torch.testing.assert_close(samples, Y.mT.expand(10, 4), atol=0.2, rtol=0)


def test_paths_are_functions(case):
    paths = draw_matheron_paths(case.target(4), sample_shape=torch.Size([3]))
    X = FAMILY.inputs(6)
    values = paths(X)
    assert values.shape == (3, 6)
    assert torch.equal(values, paths(X))
    torch.testing.assert_close(values[:, 2:4], paths(X[2:4]))
    batched = paths(X.reshape(2, 1, 3, 2))
    torch.testing.assert_close(batched.movedim(0, 1).reshape(3, 6), values)


def test_paths_are_differentiable(case):
    paths = draw_matheron_paths(case.target(4), sample_shape=torch.Size([3]))
    X = FAMILY.inputs(4).requires_grad_()
    assert torch.autograd.gradcheck(paths, X, atol=1e-3, rtol=1e-4, fast_mode=True)


def test_paths_are_reproducible(case):
    X = FAMILY.inputs(4)
    draws = []
    for _ in range(2):
        torch.manual_seed(7)
        draws.append(draw_matheron_paths(case.target(4), sample_shape=torch.Size([3]))(X))
    assert torch.equal(*draws)
    assert draws[0].std(dim=0).min() > 0


def test_path_model(inexact):
    path_model = get_matheron_path_model(inexact.target(4))
    X = FAMILY.inputs(3, 2)
    posterior = path_model.posterior(X)
    assert posterior.mean.shape == (3, 2, 1)
    assert torch.equal(posterior.mean, path_model.posterior(X).mean)
    many = get_matheron_path_model(inexact.target(4), sample_shape=torch.Size([5]))
    assert many.posterior(X.unsqueeze(1)).mean.shape[-2:] == (2, 1)


def test_path_model_of_a_list(inexact):
    models = ModelListGP(inexact.target(4), inexact.target(3))
    posterior = get_matheron_path_model(models).posterior(FAMILY.inputs(3, 2))
    assert posterior.mean.shape == (3, 2, 2)


def test_thompson_sampling(inexact):
    acquisition = PathwiseThompsonSampling(inexact.target(4))
    X, value = optimize_acqf(acquisition, bounds(), q=2, **BUDGET)
    assert X.shape == (2, FAMILY.dim)
    assert value.isfinite()


def test_optimal_samples_for_entropy_search(inexact):
    model = inexact.target(4)
    optimal_X, optimal_Y = get_optimal_samples(
        model, bounds(), num_optima=3, raw_samples=16, num_restarts=2
    )
    assert optimal_X.shape == (3, FAMILY.dim)
    assert optimal_Y.shape == (3, 1)
    acquisition = qJointEntropySearch(model, optimal_X, optimal_Y)
    assert acquisition(FAMILY.inputs(3, 1)).isfinite().all()
