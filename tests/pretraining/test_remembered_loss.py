from __future__ import annotations

import pytest
import torch
from torch import Tensor

from botorch_transfer.pretraining import PretrainedPrior
from botorch_transfer.pretraining.remembered_loss import RememberedLoss
from botorch_transfer.pretraining.source_loss import SourceLoss
from tests.families import ShiftedSines


@pytest.fixture
def x():
    return torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.double))


@pytest.fixture
def unused():
    return torch.nn.Parameter(torch.tensor(3.0, dtype=torch.double))


def counted(x: Tensor, calls: list[int]) -> Tensor:
    calls.append(1)
    loss = (x**4).sum()
    loss.backward()
    return loss.detach()


def test_a_point_is_evaluated_once(x, unused):
    calls = []
    loss = RememberedLoss([x, unused], lambda: counted(x, calls))
    start, first = x.detach().clone(), loss()
    torch.testing.assert_close(x.grad, 4 * start**3)
    with torch.no_grad():
        x += 1
    second, gradient = loss(), x.grad.clone()
    with torch.no_grad():
        x.copy_(start)
    assert torch.equal(loss(), first)
    torch.testing.assert_close(x.grad, 4 * start**3)
    assert unused.grad == 0
    assert len(calls) == 2
    x.grad.zero_()  # what the caller does to a gradient is not remembered
    loss()
    torch.testing.assert_close(x.grad, 4 * start**3)
    with torch.no_grad():
        x += 1
    assert torch.equal(loss(), second)
    assert torch.equal(x.grad, gradient)


def test_an_iteration_begins_where_the_last_one_ended(x):
    calls = []
    loss = RememberedLoss([x], lambda: counted(x, calls))
    loss()
    start = x.detach().clone()
    with torch.no_grad():
        x += 1
    loss()
    loss.begin()
    loss()
    assert len(calls) == 2
    with torch.no_grad():
        x.copy_(start)
    loss()
    assert len(calls) == 3  # it was forgotten


def test_lbfgs_evaluates_no_point_twice(monkeypatch):
    family, points, full = ShiftedSines(), [], SourceLoss.full

    def seen(self, parts):
        points.append(torch.cat([p.detach().flatten() for p in parts.parameters()]))
        return full(self, parts)

    monkeypatch.setattr(SourceLoss, "full", seen)
    PretrainedPrior.stationary(2).fit(family.sources(), optimizer="lbfgs", steps=10)
    assert len(torch.stack(points).unique(dim=0)) == len(points)
    assert len(points) > 10
