from __future__ import annotations

import math

import pytest
import torch

from botorch_transfer.test_functions import AlpineFamily


def test_formula():
    x = -3.0
    expected = x * math.sin(x + math.pi + 0.7) + 0.1 * x
    value = AlpineFamily(s=0.7)(torch.tensor([[x]], dtype=torch.double))
    assert value.item() == pytest.approx(expected, rel=1e-12)
    sloped = AlpineFamily(c=-0.5)(torch.tensor([[x]], dtype=torch.double))
    assert sloped.item() == pytest.approx(x * math.sin(x + math.pi) - 0.5 * x, rel=1e-12)


def test_a_dense_grid_has_nothing_better():
    grid = torch.linspace(-10, 10, 40_001, dtype=torch.double).unsqueeze(-1)
    for task in (AlpineFamily(), *AlpineFamily.sample(5, seed=0)):
        values = task(grid)
        assert task.optimal_value <= values.min() + 1e-9
        assert task.optimal_value == pytest.approx(float(values.min()), abs=1e-4)
        place = float(grid[values.argmin()])
        assert task.optimizers.tolist() == [[pytest.approx(place, abs=1e-3)]]


def test_the_target_has_one_global_and_three_local_minima():
    values = AlpineFamily()(torch.linspace(-10, 10, 4001, dtype=torch.double).unsqueeze(-1))
    inner = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    assert int(inner.sum()) == 4


def test_samples_are_the_five_sources_in_random_order():
    shifts = [task.s for task in AlpineFamily.sample(5, seed=0)]
    assert sorted(shifts) == pytest.approx([k * math.pi / 12 for k in range(1, 6)])
    assert shifts[:2] == [task.s for task in AlpineFamily.sample(2, seed=0)]
    assert {AlpineFamily.sample(1, seed=seed)[0].s for seed in range(30)} == set(shifts)
    with pytest.raises(ValueError, match="has 5 source tasks, not 6"):
        AlpineFamily.sample(6, seed=0)


def test_problems_have_the_papers_target():
    target, sources = AlpineFamily.sample_problem(5, seed=0, noise_std=0.1)
    assert target.s == 0
    assert target.noise_std == 0.1
    assert list(sources) == [f"shift {k} pi/12" for k in range(1, 6)]
    assert [task.s for task in sources.values()] == list(AlpineFamily.SHIFTS)
    _, few = AlpineFamily.sample_problem(2, seed=3)
    assert len(few) == 2
    assert list(few) == sorted(few)
