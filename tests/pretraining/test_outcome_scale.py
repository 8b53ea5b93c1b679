from __future__ import annotations

import pytest
import torch

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining.tasks import PaddedTasks, outcome_scales
from tests.pretraining.tasks import draw_data


def pad(data) -> PaddedTasks:
    return PaddedTasks.from_datasets(as_datasets(data))


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
def test_dtype_is_that_of_the_data(scale) -> None:
    data = {k: tuple(t.float() for t in v) for k, v in draw_data([3, 2]).items()}
    for tensor in outcome_scales(pad(data), scale):
        assert tensor.dtype is torch.float32


def test_unknown_scale() -> None:
    message = r"Unknown outcome_scale 'both': choose one of 'per_task', 'pooled', 'raw'\."
    with pytest.raises(ValueError, match=message):
        outcome_scales(pad(draw_data([3])), "both")
