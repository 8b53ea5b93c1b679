from __future__ import annotations

import math

import pytest
import torch
from botorch.test_functions import Branin

from botorch_transfer.test_functions import BraninFamily


def test_defaults_are_the_original_function():
    original = Branin()
    task = BraninFamily()
    assert torch.equal(task.bounds, original.bounds)
    X = original.bounds[0] + 15 * torch.rand(50, 2, dtype=torch.double)
    torch.testing.assert_close(task(X), original(X), rtol=1e-6, atol=1e-6)
    assert task.optimal_value == pytest.approx(original.optimal_value, abs=1e-5)


def test_formula():
    task = BraninFamily(a=0.7, b=0.12, c=1.3, r=5.5, s=9.0, t=0.04)
    x1, x2 = 2.0, 3.0
    expected = 0.7 * (x2 - 0.12 * 4 + 1.3 * 2 - 5.5) ** 2 + 9 * 0.96 * math.cos(2.0) + 9
    value = task(torch.tensor([x1, x2], dtype=torch.double))
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_parameters_are_in_the_papers_ranges():
    ranges = {
        "a": (0.5, 1.5),
        "b": (0.1, 0.15),
        "c": (1.0, 2.0),
        "r": (5.0, 7.0),
        "s": (8.0, 12.0),
        "t": (0.03, 0.05),
    }
    tasks = BraninFamily.sample(200, seed=0)
    for name, (low, high) in ranges.items():
        values = torch.tensor([getattr(task, name) for task in tasks])
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)


def test_the_basins_are_equally_deep_within_the_box():
    counts = set()
    for task in BraninFamily.sample(12, seed=1):
        assert task.optimal_value == pytest.approx(task.s * task.t, rel=1e-9)
        x1 = math.pi * torch.tensor([-1.0, 1.0, 3.0], dtype=torch.double)
        x2 = task.b * x1.square() - task.c * x1 + task.r
        inside = (x2 >= 0) & (x2 <= 15)
        found = task.optimizers[task.optimizers[:, 0].argsort()]
        expected = torch.stack([x1, x2], dim=-1)[inside]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        counts.add(int(inside.sum()))
    assert len(counts) > 1
