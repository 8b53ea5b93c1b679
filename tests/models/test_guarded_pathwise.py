from __future__ import annotations

import pytest
import torch
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths

from botorch_transfer import GuardedTransferGP, SourceGPs
from tests.families import ShiftedSines
from tests.models.drawn_functions import assert_moments

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)
TEST_X = FAMILY.inputs(4, seed=5)
NUM_PATHS = torch.Size([1500])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(n, weight, inverted=False):
    X, Y = FAMILY.target(n)
    model = GuardedTransferGP(X, 100 - Y if inverted else Y, PRIOR).eval()
    model.transfer_weight.data.fill_(weight)
    return model


# The contract draws with the weight that a fit leaves, which is close to one.
@pytest.mark.parametrize(
    ("n", "weight"), [(0, 0.3), (0, 1.0), (3, 0.0), (3, 0.3), (3, 0.8), (3, 1.0)]
)
def test_moments_with_any_weight(n, weight):
    model = build(n, weight, inverted=True)
    draws = draw_matheron_paths(model, NUM_PATHS)(TEST_X)
    assert_moments(draws, model.posterior(TEST_X), tolerance=0.15)


def test_moments_of_prior_paths():
    draws = draw_kernel_feature_paths(build(3, 0.4), NUM_PATHS)(TEST_X)
    assert_moments(draws, build(0, 0.4).posterior(TEST_X), tolerance=0.15)


def test_which_model_is_right_is_drawn_once_a_function():
    model = build(3, 0.5, inverted=True)
    paths = draw_matheron_paths(model, torch.Size([200]))
    transfer, plain = (paths.paths[f"mean_of_{name}"] for name in ("transfer", "plain"))
    with torch.no_grad():
        apart = transfer(TEST_X) + plain(TEST_X)
        means = (model.transfer(TEST_X).mean, model.plain(TEST_X).mean)
    # Up to the part that all draws share, they lie on one line through the two means.
    side = (apart - apart.mean(dim=0)) / (means[0] - means[1])
    torch.testing.assert_close(side, side[:, :1].expand_as(side))


def test_both_models_keep_their_transforms():
    model = build(3, 0.5)
    draw_matheron_paths(model, torch.Size([2]))
    draw_kernel_feature_paths(model, torch.Size([2]))
    assert hasattr(model, "outcome_transform")
    assert hasattr(model.transfer, "outcome_transform")
