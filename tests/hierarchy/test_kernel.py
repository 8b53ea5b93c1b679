from copy import deepcopy
from functools import partial

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given
from hypothesis import strategies as st

from botorch_transfer.data import check_joint_size
from botorch_transfer.hierarchy import prior as hierarchy
from botorch_transfer.hierarchy.prior import BoostedHierarchy, ConditionedHierarchy, Propagate
from botorch_transfer.prior import Observations
from tests.gp.padded import KERNELS, draw_tasks, points
from tests.hierarchy.twin import (
    SIZES,
    Step,
    boosted,
    climb,
    joint,
    moments_and_gradient,
    sequential,
    stack,
    stacked,
)

KINDS: list[tuple[Propagate, Step]] = [("covariance", sequential), ("mean", boosted)]
sizes_ = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("kernel", "sizes"), [*((kernel, SIZES[2]) for kernel in KERNELS), ("rbf", SIZES[0])]
)
@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_recursion(propagate: Propagate, step: Step, sizes: tuple[int, ...], kernel: str) -> None:
    levels, A = draw_tasks(sizes, 2, kernel), points(5, 2)
    gps, twin = stack(levels, propagate), climb(step, levels)
    # Of the Matérn kernels at zero distance, roots have no derivative the plain way.
    if kernel == "rbf":
        mine = moments_and_gradient(lambda x: (gps.mean(x)[0], gps.covariance(x)[0]), A)
        theirs = moments_and_gradient(twin.at, A)
    else:
        mine, theirs = (gps.mean(A)[0], gps.covariance(A)[0]), twin.at(A)
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_variance_and_batches(propagate: Propagate, step: Step) -> None:
    levels, A, B = draw_tasks(SIZES[2], 3), points(2, 4, 6, 3), points(5, 3, seed=2)
    gps, twin = stack(levels, propagate), climb(step, levels)
    means, variances = gps.mean(A), gps.variance(A)
    joints, between = gps.covariance(A), gps.covariance(A, B)
    single = gps.covariance(A[..., :1, :], B)
    for i, j in ((0, 0), (1, 3)):
        mean, covariance = twin.at(A[i, j])
        torch.testing.assert_close(means[i, j, 0], mean)
        torch.testing.assert_close(variances[i, j, 0], covariance.diagonal())
        torch.testing.assert_close(joints[i, j, 0], covariance)
        torch.testing.assert_close(between[i, j, 0], twin.covariance(A[i, j], B))
        torch.testing.assert_close(single[i, j, 0], twin.covariance(A[i, j, :1], B))


@given(sizes=sizes_, seed=st.integers(0, 100))
def test_sequential_is_joint(sizes: list[int], seed: int) -> None:
    levels, A = draw_tasks(sizes, 2, seed=seed), points(4, 2)
    gps = stack(levels, "covariance")
    moments = (gps.mean(A)[0], gps.covariance(A)[0])
    torch.testing.assert_close(moments, joint(levels).at(A), rtol=1e-8, atol=1e-9)


def test_level_variances() -> None:
    levels, A = draw_tasks(SIZES[2], 2), points(3, 4, 2)
    gps = stack(levels, "mean")
    assert isinstance(gps, BoostedHierarchy)
    variances = gps.levels.variance(A)
    assert variances.shape == (3, 5, 4)
    for index, level in enumerate(levels):
        own = level.posterior_covariance(A[1], A[1]).diagonal()
        torch.testing.assert_close(variances[1, index], own)


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_solve_gives_coefficients_of_the_cross_kernel(propagate: Propagate) -> None:
    levels, A = draw_tasks(SIZES[1], 2), points(5, 2)
    gps = stack(levels, propagate)
    Y = torch.cat([level.Y for level in levels])
    difference = Y - gps.level_means.cumsum(0)[gps.level]
    coefficients = gps.solve(difference.unsqueeze(0))
    mean = gps.prior_mean.unsqueeze(-1) + (gps.cross(A) @ coefficients.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(mean, gps.mean(A))


def test_level_means_are_zero_by_default() -> None:
    levels = draw_tasks([3, 4], 2)
    gps = ConditionedHierarchy.from_data(stacked(levels), points(2, 2), points(2))
    far = gps.mean(points(1, 2) + 100)
    assert torch.equal(far, torch.zeros_like(far))


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_repeated_points_without_noise(propagate: Propagate) -> None:
    levels = draw_tasks([4, 3], 2)
    gps = stack(levels, propagate)
    tensors, Y = gps.tensors(), torch.cat([level.Y for level in levels])
    X, _, level, _, *hyperparameters = tensors.values()
    X, Y, level = (torch.cat([part[:1], part]) for part in (X, Y, level))
    data = Observations(X, Y, torch.zeros_like(Y), level)
    with pytest.warns(match="added jitter"):
        singular = type(gps).from_data(data, *hyperparameters)
    A = points(5, 2)
    assert bool(singular.mean(A).isfinite().all())
    assert bool((singular.variance(A) < 10).all())


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_no_factor(propagate: Propagate) -> None:
    tensors = stack(draw_tasks([4, 3], 2), propagate).tensors()
    tensors["noise"] = torch.full((7,), -10.0, dtype=torch.double)
    hierarchy = ConditionedHierarchy if propagate == "covariance" else BoostedHierarchy
    with pytest.raises(InputDataError, match=r"source task 'v1' is not positive definite"):
        hierarchy(**tensors, task_names=["v1", "v2"])
    tensors["noise"][:4] = 1.0
    with pytest.raises(InputDataError, match=r"source task 'v2' is not positive definite"):
        hierarchy(**tensors, task_names=["v1", "v2"])


def test_copies_share_tensors() -> None:
    gps = stack(draw_tasks([4, 3], 2), "mean")
    twin = deepcopy(gps)
    assert twin.alpha is gps.alpha
    # What BHGP's covariance needs is made once for all copies, even after they were made.
    twin.variance(points(1, 2))
    boosts = [h._boosts(h._boost, h.points, h.alpha) for h in (gps, twin)]
    assert boosts[0] is boosts[1]


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_other_sizes_of_levels_are_loaded(propagate: Propagate) -> None:
    tasks = draw_tasks([4, 2, 4], 2)
    gps, other = stack(tasks[:2], propagate), stack(tasks[1:], propagate)
    X = points(5, 2)
    expected = other.mean(X), other.variance(X)
    gps.load_state_dict(other.state_dict())
    torch.testing.assert_close((gps.mean(X), gps.variance(X)), expected)


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_inference_mode_leaves_no_trace(propagate: Propagate) -> None:
    gps, X = stack(draw_tasks([4, 3], 2), propagate), points(5, 2)
    with torch.inference_mode():
        gps.variance(X)
    X.requires_grad_()
    (gradient,) = torch.autograd.grad(gps.variance(X).sum(), X)
    assert gradient.abs().max() > 0


def test_means_need_no_joint_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchy, "check_joint_size", partial(check_joint_size, max_bytes=1))
    gps = stack(draw_tasks([4, 3], 2), "mean")
    assert gps.mean(points(5, 2)).isfinite().all()
    with pytest.raises(InputDataError, match=r"7 points together.*use MeanHierarchicalGP"):
        gps.variance(points(5, 2))


def test_rows_out_of_order_are_refused():
    X = torch.rand(4, 2, dtype=torch.double)
    ones = torch.ones(4, dtype=torch.double)
    level = torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="ascending order"):
        ConditionedHierarchy.from_data(Observations(X, ones, ones, level), X[:2] + 1, ones[:2])
