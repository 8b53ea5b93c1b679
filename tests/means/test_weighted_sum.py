from __future__ import annotations

import pytest
import torch
from torch import Tensor

from botorch_transfer.kernels.weighted_sum import WeightedSumMean
from botorch_transfer.kernels.weights import TaskWeights
from tests.kernels.tasks import condition, draw_tasks, points

TASKS = draw_tasks([5, 2, 7], 2)
WEIGHTS = torch.tensor([0.3, 1.2, 0.01], dtype=torch.double)


def build(*batch_shape: int) -> WeightedSumMean:
    """A mean with these weights; in a batch, they are multiplied by 1, 2, ..."""
    task_weights = TaskWeights(3, torch.Size(batch_shape)).double()
    factors = torch.arange(1, 1 + torch.Size(batch_shape).numel()).double().reshape(batch_shape)
    task_weights.weights = factors.unsqueeze(-1) * WEIGHTS
    return WeightedSumMean(condition(TASKS), task_weights)


def expected(x: Tensor, weights: Tensor = WEIGHTS) -> Tensor:
    pairs = zip(weights, TASKS, strict=True)
    return sum(weight * task.posterior_mean(x) for weight, task in pairs)


def check(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs.detach(), atol=1e-9, rtol=0)


def test_formula() -> None:
    mean, x = build(), points(4, 2)
    check(mean(x), expected(x))
    check(mean(x.unsqueeze(0)), expected(x).unsqueeze(0))


def test_without_weights_every_task_counts_once() -> None:
    mean, x = WeightedSumMean(condition(TASKS)), points(4, 2)
    check(mean(x), expected(x, torch.ones(3)))
    assert mean(x.expand(3, 4, 2)).shape == (3, 4)


def test_batch_of_inputs() -> None:
    mean, x = build(), points(2, 3, 4, 2)
    assert mean(x).shape == (2, 3, 4)
    check(mean(x)[1, 2], expected(x[1, 2]))
    repeated = x[0, 0].expand(2, 3, 4, 2)
    check(mean(repeated), expected(x[0, 0]).expand(2, 3, 4))
    assert mean(points(2, 0, 2)).shape == (2, 0)


def test_batch_of_weights() -> None:
    mean, x = build(2), points(4, 2)
    both = torch.stack([expected(x), 2 * expected(x)])
    check(mean(x.expand(2, 4, 2)), both)
    check(mean(x), both)
    check(mean(x.expand(3, 1, 4, 2)), both.expand(3, 2, 4))


def test_gradients() -> None:
    mean, x = build(), points(4, 2).requires_grad_()
    assert torch.autograd.gradcheck(mean, (x,))
    for _ in range(2):
        (gradient,) = torch.autograd.grad(mean(x.detach()).sum(), mean.task_weights.raw_weights)
        means = torch.stack([task.posterior_mean(x.detach()).sum() for task in TASKS])
        torch.testing.assert_close(gradient, means)


def test_source_means_at_training_inputs_are_evaluated_once(monkeypatch) -> None:
    mean, X = build(), points(6, 2)
    calls = []
    evaluate = type(mean.gps).mean
    monkeypatch.setattr(
        type(mean.gps), "mean", lambda self, x: calls.append(x.shape) or evaluate(self, x)
    )
    for _ in range(3):
        mean(X)
        mean(X.expand(2, 6, 2))
    assert calls == [(6, 2)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda() -> None:
    mean, x = build(), points(4, 2)
    mean(x)
    check(mean.cuda()(x.cuda()).cpu(), expected(x))
