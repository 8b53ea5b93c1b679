"""Functions drawn with deviations that are combined along the hierarchy."""

from __future__ import annotations

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths

from botorch_transfer import MeanHierarchicalGP, SourceHierarchy
from tests.families import ShiftedSines
from tests.models.drawn_functions import assert_moments

FAMILY = ShiftedSines()
PRIOR = SourceHierarchy.fit(FAMILY.sources(), propagate="mean", num_restarts=0)
TEST_X = FAMILY.inputs(4, seed=5)
NUM_PATHS = torch.Size([1000])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(n, weight=0.3):
    return MeanHierarchicalGP(*FAMILY.target(n), PRIOR, deviation_weight=weight).eval()


@pytest.mark.parametrize("n", [0, 3])
def test_moments(n):
    posterior = build(n).posterior(TEST_X)
    ratio = posterior.variance / build(n, None).posterior(TEST_X).variance
    assert ((ratio - 1).abs() > 0.3).any()  # or the exact model's draws would do
    assert_moments(draw_matheron_paths(build(n), NUM_PATHS)(TEST_X), posterior, tolerance=0.15)


def test_moments_of_prior_paths():
    model, expected = build(3), build(0)
    expected.outcome_transform = model.outcome_transform  # else it standardizes without the target
    draws = draw_kernel_feature_paths(model, NUM_PATHS)(TEST_X)
    assert_moments(draws, expected.posterior(TEST_X), tolerance=0.15)


def test_moments_on_raw_inputs():
    transform = Normalize(2, bounds=torch.tensor([[-5.0, 100.0], [5.0, 300.0]]).double())
    raw = {name: (transform.untransform(X), Y) for name, (X, Y) in FAMILY.sources().items()}
    prior = SourceHierarchy.fit(raw, "mean", input_transform=transform, num_restarts=0)
    X, Y = FAMILY.target(3)
    model = MeanHierarchicalGP(transform.untransform(X), Y, prior, deviation_weight=0.3).eval()
    points = transform.untransform(TEST_X)
    draws = draw_matheron_paths(model, NUM_PATHS)(points)
    assert_moments(draws, model.posterior(points), tolerance=0.15)


def test_batches_of_models_and_inputs():
    X, Y = FAMILY.target(3)
    batch = MeanHierarchicalGP(
        torch.stack([X, 1 - X]), torch.stack([Y, -Y]), PRIOR, deviation_weight=0.3
    ).eval()
    paths = draw_matheron_paths(batch, torch.Size([5]))
    values = paths(TEST_X)
    assert values.shape == (5, 2, 4)
    torch.testing.assert_close(paths(TEST_X.expand(2, 4, 2)), values)
    for index in range(4):
        torch.testing.assert_close(paths(TEST_X[[index]])[..., 0], values[..., index])


def test_draws_are_differentiable_and_stay_what_they_are():
    model = build(3)
    paths = draw_matheron_paths(model, torch.Size([2]))
    X = TEST_X.clone().requires_grad_()
    assert torch.autograd.gradcheck(paths, X, atol=1e-3, rtol=1e-4, fast_mode=True)
    before = paths(TEST_X)
    for parameter in model.parameters():
        parameter.data.add_(0.3)
    assert torch.equal(paths(TEST_X), before)
