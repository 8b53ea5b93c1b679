"""The loops of Adam and L-BFGS, flat parameters, and sub-samples."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from threading import Event, Thread

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch.nn import Linear, Parameter

from botorch_transfer.data import as_datasets
from botorch_transfer.gp import optimize as optimizers
from botorch_transfer.gp.optimize import (
    FlatParameters,
    RandomBatches,
    adam_steps,
    lbfgs_steps,
    minimize_batched,
    single_threaded_scipy,
)
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperbo.objectives import SourceLoss
from botorch_transfer.pretraining import PretrainedPrior
from tests.families import ShiftedSines

STEPS = 600


@pytest.fixture
def x():
    return Parameter(torch.tensor([1.0, -2.0], dtype=torch.double))


def quartic(x):
    loss = (x**4).sum() + (x[0] - x[1]) ** 2
    loss.backward()
    return loss


# ------------------------------------------------------------------------------------- loops


def test_adam_takes_the_steps_of_a_plain_loop(x):
    twin = Parameter(x.detach().clone())
    adam = torch.optim.Adam([x], fused=True)
    losses = list(adam_steps(adam, lambda _: quartic(x), range(20), lambda step: 0.1 / (1 + step)))
    expected, plain = [], torch.optim.Adam([twin], foreach=False)
    for step in range(20):
        plain.param_groups[0]["lr"] = 0.1 / (1 + step)
        plain.zero_grad()
        expected.append(quartic(twin).item())
        plain.step()
    torch.testing.assert_close(x, twin, rtol=1e-12, atol=1e-12)
    assert losses == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_adam_skips_a_step_that_is_not_finite(x, bad):
    def evaluate(step):
        loss = quartic(x)
        if step == 1:
            if bad == "loss":
                return loss * math.inf
            x.grad[0] = math.nan
        return loss

    seen = []
    adam = torch.optim.Adam([x], lr=0.1, fused=True)
    for loss in adam_steps(adam, evaluate, range(3)):
        seen.append((math.isfinite(loss), x.detach().clone()))
    assert [finite for finite, _ in seen] == [True, False, True]
    assert torch.equal(seen[0][1], seen[1][1])
    assert seen[2][1].isfinite().all()
    assert not torch.equal(seen[1][1], seen[2][1])


def lbfgs(x):
    return torch.optim.LBFGS([x], max_iter=1, line_search_fn="strong_wolfe")


def test_lbfgs_stops_at_the_minimum(x):
    losses = list(lbfgs_steps(lbfgs(x), lambda: quartic(x)))
    assert 3 < len(losses) < 60
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-6
    assert list(lbfgs_steps(lbfgs(x), lambda: quartic(x), previous=losses[-1])) == [losses[-1]]


def test_lbfgs_turns_back_from_where_the_loss_is_undefined(x):
    def evaluate():
        loss = quartic(x)
        return loss if float(x[1].detach()) < 0 else loss * math.nan

    losses = list(lbfgs_steps(lbfgs(x), evaluate))
    assert losses[-1] < 1e-3
    assert x[1] <= 0
    x.data[1] = 1.0
    before = x.detach().clone()
    (loss,) = lbfgs_steps(lbfgs(x), evaluate)
    assert math.isnan(loss)
    assert torch.equal(x, before)


def test_lbfgs_evaluates_no_point_twice(monkeypatch):
    family, points, full = ShiftedSines(), [], SourceLoss.full

    def seen(self, parts):
        points.append(torch.cat([p.detach().flatten() for p in parts.parameters()]))
        return full(self, parts)

    monkeypatch.setattr(SourceLoss, "full", seen)
    PretrainedPrior.stationary(2).fit(family.sources(), optimizer="lbfgs", steps=10)
    assert len(torch.stack(points).unique(dim=0)) == len(points)
    assert len(points) > 10


# -------------------------------------------------------------------------- flat parameters


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Linear(2, 1, dtype=torch.double)


def test_vector_and_parameters_are_one(layer):
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    flat = FlatParameters(layer.parameters())
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name])
    flat.vector.data += 1
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name] + 1)
    layer.bias.data.fill_(5.0)
    assert flat.vector[-1] == 5


def test_gradients_add_up_in_the_vector(layer):
    flat = FlatParameters(layer.parameters())
    layer.weight.sum().mul(3.0).backward()  # the bias has none
    assert flat.vector.grad.tolist() == [3.0, 3.0, 0.0]
    layer.bias.sum().backward()
    assert flat.vector.grad.tolist() == [3.0, 3.0, 1.0]
    flat.vector.grad.zero_()
    assert layer.weight.grad.tolist() == [[0.0, 0.0]]


def test_released_parameters_have_memory_of_their_own(layer):
    flat = FlatParameters(layer.parameters())
    flat.vector.data.fill_(2.0)
    layer.weight.sum().backward()
    flat.release()
    flat.vector.data.fill_(7.0)
    assert layer.weight.tolist() == [[2.0, 2.0]]
    assert layer.bias.untyped_storage().nbytes() == 8
    assert layer.weight.grad is None


def test_no_parameters():
    flat = FlatParameters([])
    assert flat.vector.shape == (0,)
    flat.release()


# ------------------------------------------------------------------------------- sub-samples


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
    return torch.stack([torch.where(tasks.mask, tasks.Y, torch.nan) for tasks in found])


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
    batches = RandomBatches(numbered((9, 4, 12), known_noise=(0, 2)), 6, 2, seed=0)
    for step in range(20):
        tasks = batches[step]
        X, Y, mask = tasks.X, tasks.Y, tasks.mask
        torch.testing.assert_close(X[mask], torch.stack([Y, -Y], dim=-1)[mask])
        assert (Y[~mask] == 0).all()
        number = Y.amax(dim=-1).div(100, rounding_mode="floor")
        assert torch.equal(tasks.fixed_noise, number != 1)
        expected = torch.where(tasks.fixed_noise.unsqueeze(-1), Y + 0.5, 0.0)
        torch.testing.assert_close(tasks.Yvar[mask], expected[mask])


def test_padding_is_announced():
    assert not RandomBatches(numbered((5, 9)), 5, 2).is_padded
    assert RandomBatches(numbered((4, 9)), 5, 2).is_padded


def test_small_tasks_are_drawn_whole():
    tasks = numbered((4, 2))
    found = RandomBatches(tasks, batch_size=50)[0]
    torch.testing.assert_close(found.Y.sort().values, tasks.Y.sort().values)


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


def test_on_a_device(device):
    tasks = RandomBatches(numbered((9, 12), device=device), 5, 2)[0]
    assert tasks.X.device.type == device
    torch.testing.assert_close(tasks.X[..., 0], tasks.Y)


def test_batched_lbfgs_within_bounds():
    evaluated = []

    def parabolas(x, rows):
        evaluated.append(rows.tolist())
        value = (x - rows.unsqueeze(-1)).square().sum(-1)
        value[rows == 3] = torch.nan  # nowhere defined
        return value, 2 * (x - rows.unsqueeze(-1))

    starts, bounds = torch.zeros(4, 2).double(), torch.tensor([[-1.0, -1.0], [1.5, 9.0]])
    x, value = minimize_batched(parabolas, starts, bounds, max_iter=50)
    expected = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.5, 2.0]]).double()
    torch.testing.assert_close(x[:3], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(value, torch.tensor([0.0, 0.0, 0.25, torch.inf]).double())
    assert evaluated[0] == [0, 1, 2, 3]
    assert 0 not in evaluated[-1]  # what has converged is left out


PROGRAM = """
import resource, torch
from botorch_transfer.gp.optimize import keep_freed_memory

def evaluate():
    return [torch.ones(2**19, dtype=torch.double) for _ in range(10)]  # 40 MiB, 10,240 pages

def page_faults():
    evaluate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        evaluate()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults())
keep_freed_memory()
print(page_faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's allocator")
def test_pages_are_paid_for_once_and_not_each_time() -> None:
    # With settings of its own, as dask makes them, the allocator does not adapt.
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, check=True, env=environment)
    each_time, once = map(int, run.stdout.split())
    assert once < each_time / 10


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_limits_are_given_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        with single_threaded_scipy():
            assert blas_threads() == {1}
            with single_threaded_scipy():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_limits_are_given_back_after_an_error() -> None:
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(ZeroDivisionError), single_threaded_scipy():
            raise ZeroDivisionError
        assert blas_threads() == {2}
        with single_threaded_scipy():
            assert blas_threads() == {1}


def test_limits_are_given_back_where_fits_overlap() -> None:
    # The first one in is the first one out.
    first_in, second_in, first_out = Event(), Event(), Event()

    def first() -> None:
        with single_threaded_scipy():
            first_in.set()
            second_in.wait()
        first_out.set()

    def second() -> None:
        first_in.wait()
        with single_threaded_scipy():
            second_in.set()
            first_out.wait()

    before, threads = blas_threads(), [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blas_threads() == before
