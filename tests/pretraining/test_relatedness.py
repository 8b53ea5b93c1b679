from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining.source_gps import agreement
from botorch_transfer.pretraining.source_gps.agreement import order_by_relatedness
from botorch_transfer.pretraining.source_gps.map_fit import MAPOptions
from botorch_transfer.pretraining.tasks import PaddedTasks, outcome_scales
from tests.kernels.tasks import points

Function = Callable[[Tensor], Tensor]
OPTIONS = MAPOptions(num_restarts=0)


def _wave(X: Tensor) -> Tensor:
    return torch.sin(5 * X[:, :1] + X[:, 1:])


def _bent(X: Tensor) -> Tensor:
    return _wave(X) + X[:, :1]


def _bent_back(X: Tensor) -> Tensor:
    return _wave(X) - X[:, :1]


def _odd(X: Tensor) -> Tensor:
    return 3 - 20 * torch.sin(9 * X[:, 1:])


def _constant(X: Tensor) -> Tensor:
    return 0 * X[:, :1] + 7


def _datasets(functions: Sequence[Function], size: int = 15) -> list[SupervisedDataset]:
    inputs = [points(size + index, 2, seed=index) for index in range(len(functions))]
    return as_datasets([(X, function(X)) for X, function in zip(inputs, functions, strict=True)])


def _order(functions: Sequence[Function], size: int = 15) -> list[Function]:
    tasks = PaddedTasks.from_datasets(_datasets(functions, size))
    tasks = tasks.standardize(*outcome_scales(tasks, "per_task"))
    return [functions[index] for index in order_by_relatedness(tasks, "rbf", OPTIONS).tolist()]


@pytest.mark.parametrize("first", range(3))
def test_the_odd_one_comes_first_and_the_typical_one_last(first: int) -> None:
    functions: list[Function] = [_wave, _bent, _odd, _bent_back]
    order = _order(functions[first:] + functions[:first])
    assert order[0] is _odd
    assert order[-1] is _wave


def test_constant_task_agrees_with_none() -> None:
    assert _order([_wave, _bent, _constant])[0] is _constant
    assert _order([_wave, _constant, lambda X: -_wave(X)])[-1] is _constant


@pytest.mark.parametrize("functions", [[_wave], [_odd, _wave]])
def test_one_or_two_tasks_keep_their_order(functions: list[Function]) -> None:
    assert _order(functions) == functions


def test_all_constant_tasks_keep_their_order() -> None:
    constants: list[Function] = [_constant, lambda X: _constant(X) + 1, lambda X: _constant(X) + 2]
    assert _order(constants) == constants


def test_many_points_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    functions: list[Function] = [_bent, _wave, _odd, _bent_back]
    evaluated = []
    mean = agreement.ConditionedGPs.mean

    def count(self: agreement.ConditionedGPs, x: Tensor) -> Tensor:
        evaluated.append(x)
        return mean(self, x)

    monkeypatch.setattr(agreement.ConditionedGPs, "mean", count)
    monkeypatch.setattr(agreement, "MAX_COMMON_POINTS", 20)
    order = _order(functions)
    assert 10 < len(evaluated[0]) <= 20
    assert order[0] is _odd
