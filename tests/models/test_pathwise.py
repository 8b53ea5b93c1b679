from __future__ import annotations

import pytest
import torch

from botorch_transfer.kernels.weights import TaskWeights
from botorch_transfer.models.pathwise.sources import MIN_FEATURES, SourcePath
from botorch_transfer.pretraining.source_gps.hierarchy import Propagate
from tests.hierarchy_twin import SIZES, stack
from tests.kernels.tasks import KERNELS, condition, draw_tasks, points

NUM_PATHS = 4000


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_covariance_of_weighted_paths(kernel: str) -> None:
    gps, X = condition(draw_tasks([4, 2], 2, kernel)), points(3, 2)
    weights = TaskWeights(num_tasks=2)
    weights.weights = torch.tensor([0.5, 2.0])
    path = SourcePath(gps, weights, torch.Size([NUM_PATHS]), MIN_FEATURES)
    draws = path(X)
    assert draws.shape == (NUM_PATHS, 3)
    squares = weights.weights.detach().double().square()
    expected = (squares[:, None, None] * gps.covariance(X)).sum(dim=0)
    scale = float(expected.diagonal().max())
    torch.testing.assert_close(torch.cov(draws.mT), expected, rtol=0, atol=0.1 * scale)
    # The draws are deviations from the posterior means.
    torch.testing.assert_close(
        draws.mean(dim=0), torch.zeros(3).double(), rtol=0, atol=0.08 * scale**0.5
    )


@pytest.mark.parametrize("propagate", ["covariance"])
def test_covariance_of_a_hierarchys_paths(propagate: Propagate) -> None:
    gps, X = stack(draw_tasks(SIZES[1], 2), propagate), points(3, 2)
    draws = SourcePath(gps, None, torch.Size([NUM_PATHS]), MIN_FEATURES)(X)
    expected = gps.covariance(X)[0]
    scale = float(expected.diagonal().max())
    torch.testing.assert_close(torch.cov(draws.mT), expected, rtol=0, atol=0.1 * scale)


def test_a_path_is_one_function() -> None:
    gps, X = condition(draw_tasks([4, 2], 2)), points(5, 2)
    path = SourcePath(gps, None, torch.Size([3]), MIN_FEATURES)
    whole = path(X)
    assert torch.equal(path(X), whole)
    torch.testing.assert_close(torch.cat([path(X[:2]), path(X[2:])], dim=-1), whole)


def test_inputs_may_differ_from_path_to_path() -> None:
    gps, X = condition(draw_tasks([4, 2], 2)), points(3, 5, 2)
    path = SourcePath(gps, None, torch.Size([3]), MIN_FEATURES)
    each = path(X)
    for index in range(3):
        torch.testing.assert_close(each[index], path(X[index])[index])
