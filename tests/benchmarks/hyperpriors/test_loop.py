from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from botorch.acquisition import PosteriorMean
from botorch.models import SingleTaskGP

from benchmarks.hyperpriors.loop import by_model, first_points, normalized_regrets

X = torch.linspace(0, 1, 11, dtype=torch.double).unsqueeze(-1)
Y = -(X - 0.3).square()


def run(num_steps: int = 5, seed: int = 0, **options) -> tuple[list[float], list[int]]:
    sizes = []

    def build(points, values, last):
        assert (last is None) == (len(sizes) == 0)
        sizes.append(len(points))
        return SingleTaskGP(points, values)

    score = by_model(X, Y, build, lambda model, values: PosteriorMean(model))
    return normalized_regrets(Y, score, 3, num_steps, seed, **options), sizes


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


def test_points_are_chosen_again_only_if_they_may():
    def score(chosen):
        seen.append(list(chosen))
        return torch.arange(11.0)

    for repeat, expected in ((True, [10, 10, 10]), (False, [10, 9, 8])):
        seen: list[list[int]] = []
        start = normalized_regrets(Y, score, 1, 0, seed=1)
        found = normalized_regrets(Y, score, 1, 4, seed=1, repeat=repeat)
        assert found[:1] == start
        assert seen[-1][1:] == expected


def test_regrets_are_those_of_the_first_points():
    first = first_points(11, 4, seed=2)
    assert len(set(first)) == 4
    regrets = normalized_regrets(Y, lambda chosen: torch.zeros(11), 4, 0, seed=2)
    best = Y[first].cummax(dim=0).values
    expected = (Y.max() - best) / (Y.max() - Y.min())
    torch.testing.assert_close(torch.tensor(regrets).double(), expected.squeeze(-1))
