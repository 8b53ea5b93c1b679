from dataclasses import replace

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from hypothesis import given
from hypothesis import strategies as st

from botorch_transfer.data import as_datasets
from botorch_transfer.gp.tasks import (
    PaddedTasks,
    check_padded_size,
    outcome_scales,
    target_transform,
)
from botorch_transfer.outcome_transforms import OutcomeMoments
from tests.gp.tasks import draw_data

sizes = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def pad(data, transform=None) -> PaddedTasks:
    return PaddedTasks.from_datasets(as_datasets(data), transform)


@given(sizes, st.integers(1, 4), st.sets(st.integers(0, 4)))
def test_holds_the_data(sizes: list[int], dim: int, known_noise: set[int]) -> None:
    data = draw_data(sizes, dim, tuple(known_noise))
    tasks = pad(data)
    assert tasks.X.shape == (len(sizes), max(sizes), dim)
    assert tasks.Y.shape == tasks.Yvar.shape == tasks.mask.shape == (len(sizes), max(sizes))
    assert tasks.num_points.tolist() == sizes
    for index, values in enumerate(data.values()):
        n = sizes[index]
        assert torch.equal(tasks.X[index, :n], values[0])
        assert torch.equal(tasks.Y[index, :n], values[1].squeeze(-1))
        assert tasks.mask[index].tolist() == [True] * n + [False] * (max(sizes) - n)
        assert bool(tasks.fixed_noise[index]) is (len(values) == 3)
        expected = values[2].squeeze(-1) if len(values) == 3 else torch.zeros(n).double()
        assert torch.equal(tasks.Yvar[index, :n], expected)
    assert not tasks.Y[~tasks.mask].any()
    assert not tasks.Yvar[~tasks.mask].any()


def test_padding_lies_among_the_data() -> None:
    tasks = pad(draw_data([3, 8]))
    assert torch.equal(tasks.X[0, 3:], tasks.X[0, :1].expand(5, 2))


def test_transforms_inputs() -> None:
    data = draw_data([3, 8])
    transform = Normalize(2, bounds=torch.tensor([[0.0, -1.0], [2.0, 1.0]]).double()).eval()
    tasks = pad(data, transform)
    X = data["task 1"][0]
    torch.testing.assert_close(tasks.X[1], (X - torch.tensor([0.0, -1.0])) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_that_of_the_data(dtype: torch.dtype) -> None:
    data = {k: tuple(t.to(dtype) for t in v) for k, v in draw_data([3, 2]).items()}
    tasks = pad(data)
    for tensor in (tasks.X, tasks.Y, tasks.Yvar, *tasks.moments()):
        assert tensor.dtype is dtype
    double = tasks.double()
    assert double.X.dtype is double.Y.dtype is double.Yvar.dtype is torch.double


def test_selection_cuts_the_padding_that_nothing_needs() -> None:
    tasks = pad(draw_data([3, 8, 1], known_noise=[0]))
    chosen = tasks[torch.tensor([2, 0, 0])]
    assert chosen.num_points.tolist() == [1, 3, 3]
    assert chosen.X.shape == (3, 3, 2)
    assert chosen.fixed_noise.tolist() == [False, True, True]
    for name in ("X", "Y", "Yvar", "mask"):
        assert torch.equal(getattr(chosen, name)[1], getattr(tasks, name)[0, :3])


@given(sizes)
def test_moments_are_those_of_standardize(sizes: list[int]) -> None:
    data = draw_data(sizes)
    mean, std = pad(data).moments()
    for index, (_, Y) in enumerate(data.values()):
        transform = Standardize(m=1)
        transform(Y)
        torch.testing.assert_close(mean[index], transform.means.squeeze())
        torch.testing.assert_close(std[index], transform.stdvs.squeeze())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1, 1e9 + 0.1])
def test_constant_outcomes(value: float, dtype: torch.dtype) -> None:
    X = torch.rand(37, 1, dtype=dtype)
    tasks = pad([(X, torch.full_like(X, value)), (X[:1], X[:1])])
    mean, std = tasks.moments()
    assert std.tolist() == [1.0, 1.0]
    Y = tasks.standardize(mean, std).Y
    torch.testing.assert_close(Y, torch.zeros_like(Y), atol=1e-6 * max(1.0, value), rtol=0)


def test_large_outcomes_do_not_overflow_in_single_precision() -> None:
    X = torch.rand(5, 1)
    tasks = pad([(X, 1e30 * X)])
    mean, std = tasks.moments()
    Y = tasks.standardize(mean, std).Y
    torch.testing.assert_close(Y.std(), torch.tensor(1.0))


def test_standardize() -> None:
    tasks = pad(draw_data([3, 8], known_noise=[1]))
    mean, std = torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double()
    ours = tasks.standardize(mean, std)
    torch.testing.assert_close(ours.Y[0, :3], (tasks.Y[0, :3] - 1) / 3)
    torch.testing.assert_close(ours.Yvar[1], tasks.Yvar[1] / 16)
    assert not ours.Y[~ours.mask].any()
    assert torch.equal(ours.X, tasks.X)


def test_known_or_inferred_noise() -> None:
    tasks = pad(draw_data([2, 2], known_noise=[1]))
    noise = tasks.known_or(torch.tensor([0.5, 0.7], dtype=torch.double))
    assert noise[0].tolist() == [0.5, 0.5]
    assert torch.equal(noise[1], tasks.Yvar[1])


def test_size_that_fits() -> None:
    check_padded_size(["a"], [5_000])
    check_padded_size(["a"] * 1_000, [400] * 1_000)


def test_one_large_task_among_small_ones_is_refused() -> None:
    names, sizes = [f"run {index}" for index in range(300)], [50] * 299 + [2_000]
    message = (
        r"Source task 'run 299' has 2,000 points\. A padded batch of 300 tasks of this size would "
        r"take about 45\.0 GiB of memory \(the limit is 8\.0 GiB\): remove points from the largest "
        r"tasks, or raise max_bytes=\."
    )
    with pytest.raises(InputDataError, match=message):
        check_padded_size(names, sizes)
    check_padded_size(names, sizes, max_bytes=60 * 2**30)


def test_one_task_too_large_to_fit_is_refused() -> None:
    with pytest.raises(InputDataError, match=r"'a' has 20,000 points.* remove points from the"):
        check_padded_size(["a"], [20_000])


def test_per_task() -> None:
    data = draw_data([3, 8, 1])
    mean, std = outcome_scales(pad(data), "per_task")
    for index, (_, Y) in enumerate(data.values()):
        torch.testing.assert_close(mean[index], Y.mean())
        torch.testing.assert_close(std[index], Y.std() if len(Y) > 1 else torch.ones(()).double())


def test_pooled() -> None:
    data = draw_data([3, 8, 1])
    mean, std = outcome_scales(pad(data), "pooled")
    Y = torch.cat([Y for _, Y in data.values()])
    torch.testing.assert_close(mean, Y.mean().expand(3))
    torch.testing.assert_close(std, Y.std().expand(3))
    assert mean.is_contiguous()


def test_raw() -> None:
    mean, std = outcome_scales(pad(draw_data([3, 8])), "raw")
    assert mean.tolist() == [0.0, 0.0]
    assert std.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("num_points", [1, 7])
def test_pooled_outcomes_that_do_not_vary(num_points: int) -> None:
    X = torch.rand(num_points, 1)
    mean, std = outcome_scales(pad([(X, torch.full_like(X, 1000.1))]), "pooled")
    assert mean.item() == pytest.approx(1000.1)
    assert std.item() == 1.0


@pytest.mark.parametrize("scale", ["per_task", "pooled", "raw"])
def test_scales_have_the_dtype_of_the_data(scale) -> None:
    data = {k: tuple(t.float() for t in v) for k, v in draw_data([3, 2]).items()}
    for tensor in outcome_scales(pad(data), scale):
        assert tensor.dtype is torch.float32


def test_unknown_scale() -> None:
    message = r"Unknown outcome_scale 'both': choose one of 'per_task', 'pooled', 'raw'\."
    with pytest.raises(ValueError, match=message):
        outcome_scales(pad(draw_data([3])), "both")


def test_the_targets_transform_fits_the_scale() -> None:
    outcomes, Y = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([[7.0]])
    shape = torch.Size()
    moments = OutcomeMoments.of(outcomes)
    assert target_transform("raw", moments, shape) is None
    for scale, used in (("pooled", outcomes), ("per_task", torch.cat([outcomes, Y[0]]))):
        transform = target_transform(scale, moments, shape)
        torch.testing.assert_close(transform(Y)[0], (Y - used.mean()) / used.std())


def test_typical_rows_keep_their_covariance() -> None:
    tasks = pad(draw_data([9, 4]))
    root = torch.rand(2, 9, 9).double()
    tasks = replace(tasks, covariance=root @ root.mT)
    chosen = tasks.typical(5)
    assert chosen.num_points.tolist() == [5, 4]
    for task in range(2):
        n = int(chosen.num_points[task])
        rows = torch.cdist(chosen.X[task, :n], tasks.X[task]).argmin(dim=-1)
        assert torch.equal(chosen.X[task, :n], tasks.X[task, rows])
        assert torch.equal(chosen.covariance[task, :n, :n], tasks.covariance[task][rows][:, rows])
