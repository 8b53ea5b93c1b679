"""Sub-samples are uniform, without repetitions, and a function of seed and step."""

from __future__ import annotations

import pytest
import torch

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining import optimizers
from botorch_transfer.pretraining.optimizers import RandomBatches
from botorch_transfer.pretraining.tasks import PaddedTasks

STEPS = 600


def numbered(sizes=(9, 1, 12), known_noise=(), device=None):
    """Tasks whose points are told by their outcome: ``100 task + row``, which is the input, too."""
    tasks = []
    for task, size in enumerate(sizes):
        Y = (100.0 * task + torch.arange(size, dtype=torch.double, device=device)).unsqueeze(-1)
        X = torch.cat([Y, -Y], dim=-1)
        tasks.append((X, Y, Y + 0.5) if task in known_noise else (X, Y))
    return PaddedTasks.from_datasets(as_datasets(tasks))


def drawn(batches, steps=STEPS):
    """Outcomes, ``steps x T x B``; NaN where there is none."""
    found = (batches[step] for step in range(steps))
    return torch.stack([Y if m is None else torch.where(m, Y, torch.nan) for _, Y, m, _ in found])


@pytest.mark.parametrize("batch_size", [1, 5])
def test_every_point_is_equally_likely(batch_size):
    tasks = numbered()
    Y = drawn(RandomBatches(tasks, batch_size, task_batch_size=10, seed=0))
    assert Y.shape == (STEPS, 3, batch_size)
    for number, size in enumerate([9, 1, 12]):
        values = Y[:, number]
        kept = values[~values.isnan()].reshape(STEPS, -1)
        assert kept.shape[1] == min(batch_size, size)
        assert all(len(row.unique()) == len(row) for row in kept)
        share = torch.stack([(kept == y).any(-1).double().mean() for y in tasks.Y[number, :size]])
        expected = min(batch_size, size) / size
        torch.testing.assert_close(share, torch.full_like(share, expected), atol=0.09, rtol=0)


def test_every_task_is_equally_likely():
    Y = drawn(RandomBatches(numbered((5, 5, 5, 5)), batch_size=2, task_batch_size=3, seed=1))
    number = Y[..., 0].div(100, rounding_mode="floor")
    assert all(len(row.unique()) == 3 for row in number)
    share = torch.stack([(number == task).any(-1).double().mean() for task in range(4)])
    torch.testing.assert_close(share, torch.full_like(share, 0.75), atol=0.06, rtol=0)


def test_rows_stay_together():
    tasks = numbered((9, 4, 12), known_noise=(0, 2))
    batches = RandomBatches(tasks, batch_size=6, task_batch_size=2, seed=0)
    for step in range(20):
        X, Y, mask, noise = batches[step]
        assert mask is not None
        assert noise is not None
        torch.testing.assert_close(X[mask], torch.stack([Y, -Y], dim=-1)[mask])
        number = Y.amax(dim=-1, keepdim=True).div(100, rounding_mode="floor")  # padding is zero
        expected = torch.where(number == 1, torch.nan, Y + 0.5)
        torch.testing.assert_close(noise[mask], expected[mask], equal_nan=True)


def test_nothing_that_a_batch_does_not_need():
    assert RandomBatches(numbered(), 5, 2, seed=0)[0].known_noise is None
    assert RandomBatches(numbered((5, 9)), 5, 2, seed=0)[0].mask is None
    assert RandomBatches(numbered((4, 9)), 5, 2, seed=0)[0].mask is not None


@pytest.mark.parametrize("elements", [1, 100, 2**17])
def test_a_step_has_its_batch_whenever_it_is_asked_for(elements, monkeypatch):
    """So an interrupted run goes on with the batches that it would have had."""
    monkeypatch.setattr(optimizers, "BLOCK_ELEMENTS", elements)
    batches = RandomBatches(numbered(), 4, 2, seed=3)
    assert batches.block_size == max(1, elements // 24)
    forwards = [batches[step] for step in range(12)]
    for step in (11, 0, 5, 4, 7):
        again = RandomBatches(numbered(), 4, 2, seed=3)[step]
        for batch in (batches[step], again):
            assert torch.equal(batch.X, forwards[step].X)
            assert torch.equal(batch.Y, forwards[step].Y)


@pytest.mark.parametrize("elements", [1, 2**17])
def test_steps_and_seeds_differ(elements, monkeypatch):
    monkeypatch.setattr(optimizers, "BLOCK_ELEMENTS", elements)
    batches = [RandomBatches(numbered((50, 50)), 20, 2, seed) for seed in (0, 1, -1)]
    found = {tuple(each[step].Y.flatten().tolist()) for each in batches for step in range(5)}
    assert len(found) == 15


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    X, Y, *_ = RandomBatches(numbered((9, 12), device="cuda"), 5, 2, seed=0)[0]
    assert X.is_cuda
    torch.testing.assert_close(X[..., 0], Y)
