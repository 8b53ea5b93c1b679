"""Paths of source posteriors, joint models and pre-trained models."""

from functools import partial

import pytest
import torch
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from torch.testing import assert_close

from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.gp.paths import MIN_FEATURES, RescaledPath, SourcePath
from botorch_transfer.hyperbo.features import (
    FeatureKernel,
    FeatureNetwork,
    linear_features,
    scaled_linear,
)
from botorch_transfer.joint.conditional import JointPath
from tests.families import ShiftedSines
from tests.gp.drawn_functions import assert_moments
from tests.gp.padded import KERNELS, condition, draw_tasks, points
from tests.hierarchy.twin import SIZES, stack
from tests.hyperbo import pretrained_models
from tests.hyperbo.pretrained_models import NUM_TASKS
from tests.joint.joint_models import MODELS, build

NUM_PATHS = 2000


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_covariance_of_weighted_paths(kernel: str) -> None:
    gps, X = condition(draw_tasks([4, 2], 2, kernel)), points(3, 2)
    weights = TaskWeights(num_tasks=2)
    weights.weights = torch.tensor([0.5, 2.0])
    path = SourcePath(gps, weights.weights, torch.Size([NUM_PATHS]), MIN_FEATURES)
    draws = path(X)
    assert draws.shape == (NUM_PATHS, 3)
    squares = weights.weights.detach().double().square()
    expected = (squares[:, None, None] * gps.covariance(X)).sum(dim=0)
    scale = float(expected.diagonal().max())
    assert_close(torch.cov(draws.mT), expected, rtol=0, atol=0.1 * scale)
    # The draws are deviations from the posterior means.
    assert_close(draws.mean(dim=0), torch.zeros(3).double(), rtol=0, atol=0.08 * scale**0.5)


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_covariance_of_a_hierarchys_paths(propagate) -> None:
    gps, X = stack(draw_tasks(SIZES[2], 2), propagate), points(3, 2)
    draws = SourcePath(gps, torch.ones(len(gps.alpha)), torch.Size([NUM_PATHS]), MIN_FEATURES)(X)
    expected = gps.covariance(X)[0]
    scale = float(expected.diagonal().max())
    assert_close(torch.cov(draws.mT), expected, rtol=0, atol=0.1 * scale)


def test_a_path_is_one_function() -> None:
    gps, X = condition(draw_tasks([4, 2], 2)), points(5, 2)
    path = SourcePath(gps, torch.ones(len(gps.alpha)), torch.Size([3]), MIN_FEATURES)
    whole = path(X)
    assert torch.equal(path(X), whole)
    assert_close(torch.cat([path(X[:2]), path(X[2:])], dim=-1), whole)


def test_inputs_may_differ_from_path_to_path() -> None:
    gps, X = condition(draw_tasks([4, 2], 2)), points(3, 5, 2)
    path = SourcePath(gps, torch.ones(len(gps.alpha)), torch.Size([3]), MIN_FEATURES)
    each = path(X)
    for index in range(3):
        assert_close(each[index], path(X[index])[index])


FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=31)
NUM = 1024


@pytest.mark.parametrize(("name", "n"), [("ScaML", 0), *((name, 3) for name in MODELS)])
def test_moments(name, n):
    model = build(name, n=n)
    sampler = partial(draw_kernel_feature_paths, num_features=1024)
    paths = draw_matheron_paths(model, torch.Size([NUM]), prior_sampler=sampler)
    assert_moments(paths(TEST_X), model.posterior(TEST_X))


def test_a_path_stays_what_it_is():
    model = build("ScaML")
    path = draw_kernel_feature_paths(model, torch.Size([2]))
    before = path(TEST_X)
    for parameter in model.parameters():
        parameter.data.add_(0.3)
    assert torch.equal(path(TEST_X), before)


def test_paths_pass_near_precise_source_data():
    """In a hierarchy that adds next to nothing, the target's function is the source's."""
    model = build("HGP", num_tasks=1, n=0)
    model.covar_modules[1].outputscale = 1.1e-4
    points = model.conditional.points
    path = JointPath(model.conditional, torch.Size([64]), 512)
    drawn = path(points.X) + model.conditional.mean(points.X)
    assert (drawn - points.Y).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("preset", "options", "n"),
    [
        ("ablr", {}, 4),
        ("fsbo", {}, 4),
        ("hyperbo", {"unbiased": True}, 4),
        ("stationary", {"residual": 1}, 4),
        ("stationary", {"residual": 1}, 0),
    ],
)
@torch.no_grad()
def test_moments_of_paths(preset, options, n):
    options = dict(options)
    if options.pop("residual", None):
        options["covar_module"] = ScaleKernel(MaternKernel(ard_num_dims=2)).double()
    model = pretrained_models.build(n, preset, **options)
    # The error of random features falls with the root of their number.
    sampler = partial(draw_kernel_feature_paths, num_features=2**11)
    paths = draw_matheron_paths(model, torch.Size([1000]), prior_sampler=sampler)
    samples = paths(pretrained_models.TEST_X)
    assert_moments(samples, model.posterior(pretrained_models.TEST_X), tolerance=0.15)


def test_features_of_the_linear_kernel_are_exact():
    kernel = PolynomialKernel(power=1).double()
    features = linear_features(kernel, num_inputs=2)
    assert features.num_outputs == 3
    assert features(pretrained_models.TEST_X).shape == (5, 3)
    gram = features(pretrained_models.TEST_X) @ features(pretrained_models.TEST_X).mT
    assert_close(gram, kernel(pretrained_models.TEST_X).to_dense())
    with pytest.raises(NotImplementedError, match="another power than 1"):
        linear_features(PolynomialKernel(power=2), num_inputs=2)
    with pytest.raises(NotImplementedError, match="leave out active_dims="):
        linear_features(PolynomialKernel(power=1, active_dims=(1,)), num_inputs=2)


@pytest.mark.parametrize("base", [RBFKernel(), scaled_linear(3), ScaleKernel(RBFKernel())])
@torch.no_grad()
def test_features_of_features(base):
    kernel = FeatureKernel(base.double(), FeatureNetwork(2, hidden=(4, 3)))
    torch.manual_seed(0)
    drawn = gen_kernel_features(kernel, num_inputs=2, num_outputs=2**12)(pretrained_models.TEST_X)
    expected = kernel(pretrained_models.TEST_X).to_dense()
    assert_close(drawn @ drawn.mT, expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("n", [0, 4])
@torch.no_grad()
def test_deviations_of_unbiased_draws(n):
    """The draws of the same seed, without the factor, are nearer to the same mean."""
    models = pretrained_models.build(n), pretrained_models.build(n, unbiased=True)
    paths = []
    for model in models:
        torch.manual_seed(0)
        paths.append(draw_matheron_paths(model, torch.Size([3])))
    assert isinstance(paths[1]["own units"], RescaledPath)
    mean = models[0].posterior(pretrained_models.TEST_X).mean.squeeze(-1)
    factor = (NUM_TASKS / (NUM_TASKS - 1 - n)) ** 0.5
    exact, scaled = (path(pretrained_models.TEST_X) - mean for path in paths)
    assert_close(scaled, factor * exact)
