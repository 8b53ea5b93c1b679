from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from botorch.acquisition import PosteriorMean
from botorch.models import SingleTaskGP

from benchmarks.hyperpriors.loop import normalized_regrets

X = torch.linspace(0, 1, 11, dtype=torch.double).unsqueeze(-1)
Y = -(X - 0.3).square()


def run(num_steps: int = 5, seed: int = 0, **options) -> tuple[list[float], list[int]]:
    sizes = []

    def build(points, values, last):
        assert (last is None) == (len(sizes) == 0)
        sizes.append(len(points))
        return SingleTaskGP(points, values)

    found = normalized_regrets(
        X, Y, build, lambda model, values: PosteriorMean(model), 3, num_steps, seed
    )
    return found, sizes


def test_regret_is_between_best_and_worst():
    found, sizes = run()
    assert sizes == [3, 4, 5, 6, 7]
    assert len(found) == 8
    assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(found))
    assert found[-1] == pytest.approx(0.0)


def test_the_table_ends():
    found, sizes = run(num_steps=99)
    assert len(found) == 11
    assert sizes[-1] == 10
    assert found[-1] == 0


def test_first_points_follow_the_seed():
    starts = [run(num_steps=0, seed=seed)[0] for seed in (1, 1, 2, 3, 4)]
    assert starts[0] == starts[1]
    assert len({tuple(start) for start in starts}) > 1
