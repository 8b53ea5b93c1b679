from __future__ import annotations

import pytest
import torch

from botorch_transfer.pretraining import PretrainedPrior
from botorch_transfer.pretraining.optimizers import RememberedLoss
from botorch_transfer.pretraining.pretrained.objectives import SourceLoss
from tests.families import ShiftedSines


@pytest.fixture
def x():
    return torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.double))


@pytest.fixture
def calls():
    return []


@pytest.fixture
def loss(x, calls):
    def evaluate():
        calls.append(1)
        x.grad = 4 * x.detach() ** 3
        return (x.detach() ** 4).sum()

    return RememberedLoss(x, evaluate)


def test_a_point_is_evaluated_once(x, loss, calls):
    start, first = x.detach().clone(), loss()
    with torch.no_grad():
        x += 1
    second, gradient = loss(), x.grad.clone()
    with torch.no_grad():
        x.copy_(start)
    assert torch.equal(loss(), first)
    assert torch.equal(x.grad, 4 * start**3)
    assert len(calls) == 2
    x.grad.zero_()  # what the caller does to a gradient is not remembered
    loss()
    assert torch.equal(x.grad, 4 * start**3)
    with torch.no_grad():
        x += 1
    assert torch.equal(loss(), second)
    assert torch.equal(x.grad, gradient)


def test_an_iteration_begins_where_the_last_one_ended(x, loss, calls):
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
