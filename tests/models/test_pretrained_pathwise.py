"""Functions drawn from pre-trained models, and the features that they are made of."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel, FeatureNetwork
from botorch_transfer.models.pathwise.sources import LinearFeatureMap, UnbiasedPath
from tests.models.drawn_functions import assert_moments
from tests.models.pretrained_models import NUM_TASKS, TEST_X, build


@pytest.mark.parametrize(
    ("preset", "options"),
    [("ablr", {}), ("fsbo", {}), ("hyperbo", {"unbiased": True}), ("stationary", {"residual": 1})],
)
@pytest.mark.parametrize("n", [0, 4])
@torch.no_grad()
def test_moments_of_paths(preset, options, n):
    options = dict(options)
    if options.pop("residual", None):
        options["covar_module"] = ScaleKernel(MaternKernel(ard_num_dims=2)).double()
    model = build(n, preset, **options)
    # The error of random features falls with the root of their number.
    sampler = partial(draw_kernel_feature_paths, num_features=2**13)
    samples = draw_matheron_paths(model, torch.Size([1000]), prior_sampler=sampler)(TEST_X)
    assert_moments(samples, model.posterior(TEST_X), tolerance=0.15)


def test_features_of_the_linear_kernel_are_exact():
    kernel = BiasedLinearKernel(bias_variance=2.0, weight_variance=0.3).double()
    features = LinearFeatureMap(kernel, num_inputs=2)
    assert features.num_outputs == 3
    assert features(TEST_X).shape == (5, 3)
    gram = features(TEST_X) @ features(TEST_X).mT
    torch.testing.assert_close(gram, kernel(TEST_X).to_dense())


@pytest.mark.parametrize("base", [RBFKernel(), BiasedLinearKernel(), ScaleKernel(RBFKernel())])
@torch.no_grad()
def test_features_of_features(base):
    kernel = FeatureKernel(base.double(), FeatureNetwork(2, hidden=(4, 3)))
    torch.manual_seed(0)
    features = gen_kernel_features(kernel, num_inputs=2, num_outputs=2**12)(TEST_X)
    expected = kernel(TEST_X).to_dense()
    torch.testing.assert_close(features @ features.mT, expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("n", [0, 4])
@torch.no_grad()
def test_deviations_of_unbiased_draws(n):
    """The draws of the same seed, without the factor, are nearer to the same mean."""
    models = build(n), build(n, unbiased=True)
    paths = []
    for model in models:
        torch.manual_seed(0)
        paths.append(draw_matheron_paths(model, torch.Size([3])))
    assert isinstance(paths[1], UnbiasedPath)
    mean = models[0].posterior(TEST_X).mean.squeeze(-1)
    factor = (NUM_TASKS / (NUM_TASKS - 1 - n)) ** 0.5
    exact, scaled = (path(TEST_X) - mean for path in paths)
    torch.testing.assert_close(scaled, factor * exact)


@torch.no_grad()
def test_paths_do_not_follow_the_model():
    model = build(4, unbiased=True)
    path = draw_matheron_paths(model, torch.Size([3]))
    before = path(TEST_X)
    model.mean_module.bias.add_(1.0)
    model.likelihood.noise = 0.5
    assert torch.equal(path(TEST_X), before)
