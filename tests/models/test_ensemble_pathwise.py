from __future__ import annotations

import pytest
import torch
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths

from botorch_transfer import RankWeightedGP, SourceGPs, TwoStageTransferGP
from tests.families import ShiftedSines
from tests.models.drawn_functions import assert_moments

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)
TEST_X = FAMILY.inputs(4, seed=5)
NUM_PATHS = torch.Size([1500])
CLASSES = [RankWeightedGP, TwoStageTransferGP]
SHARES = [[0.5, 0.2, 0.1, 0.2], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]
"""Of the three sources, and the target's own GP last."""


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(model_class, n, shares=SHARES[0]):
    model = model_class(*FAMILY.target(n), PRIOR).eval()
    model.ensemble_weights.set(torch.tensor(shares, dtype=torch.double))
    return model


# The contract draws with the weights that a fit leaves.
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("model_class", CLASSES)
def test_moments_with_any_weights(model_class, n, shares):
    model = build(model_class, n, shares)
    draws = draw_matheron_paths(model, NUM_PATHS)(TEST_X)
    assert_moments(draws, model.posterior(TEST_X), tolerance=0.15)


@pytest.mark.parametrize("model_class", CLASSES)
def test_moments_of_prior_paths(model_class):
    draws = draw_kernel_feature_paths(build(model_class, 3), NUM_PATHS)(TEST_X)
    assert_moments(draws, build(model_class, 0).posterior(TEST_X), tolerance=0.15)


def test_sources_deviate_where_they_are_part_of_the_covariance():
    parts = [draw_matheron_paths(build(c, 3), torch.Size([2])).paths for c in CLASSES]
    assert set(parts[0]) == {"own", "sources", "mean"}
    assert set(parts[1]) == {"own", "mean"}


def test_without_points_the_prior_is_all():
    model = build(RankWeightedGP, 0)
    torch.manual_seed(1)
    prior = draw_kernel_feature_paths(model, torch.Size([3]))(TEST_X)
    torch.manual_seed(1)
    assert torch.equal(draw_matheron_paths(model, torch.Size([3]))(TEST_X), prior)
