from __future__ import annotations

import math

import pytest
import torch

from botorch_transfer.test_functions import ForresterFamily


def test_formula():
    x = 0.3
    expected = 2 * (6 * x - 2) ** 2 * math.sin(12 * x - 4) - 3 * (x - 0.5) - 1.5
    value = ForresterFamily(a=2.0, b=-3.0, c=1.5)(torch.tensor([[x]], dtype=torch.double))
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_the_original_has_its_known_optimum_and_inflection():
    task = ForresterFamily()
    assert task.optimal_value == pytest.approx(-6.02074, abs=1e-5)
    assert task.optimizers.item() == pytest.approx(0.75725, abs=1e-5)
    x = torch.tensor([[1 / 3]], dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(task(x), x)
    assert gradient.item() == pytest.approx(0.0, abs=1e-10)


def test_a_dense_grid_has_nothing_better():
    grid = torch.linspace(0, 1, 20_001, dtype=torch.double).unsqueeze(-1)
    places = []
    for task in ForresterFamily.sample(8, seed=1):
        values = task(grid)
        assert task.optimal_value <= values.min() + 1e-9
        assert task.optimal_value == pytest.approx(float(values.min()), abs=1e-4)
        places.append(task.optimizers[0].item())
    assert min(places) < 0.2
    assert max(places) > 0.7


def test_parameters_are_in_the_papers_ranges():
    tasks = ForresterFamily.sample(200, seed=0)
    for name, (low, high) in {"a": (0.2, 3.0), "b": (-5.0, 15.0), "c": (-5.0, 5.0)}.items():
        values = torch.tensor([getattr(task, name) for task in tasks])
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)
