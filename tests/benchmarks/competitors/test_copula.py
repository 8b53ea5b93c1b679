from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from benchmarks.competitors.copula import maximized_scores, normal_scores


@pytest.mark.parametrize("n", [2, 3, 10, 200])
def test_formula(n):
    values = torch.randn(n, dtype=torch.double).exp()
    cut = 1 / (4 * n**0.25 * math.sqrt(math.pi * math.log(n)))
    for value, score in zip(values.tolist(), normal_scores(values).tolist(), strict=True):
        share = sum(other <= value for other in values.tolist()) / n
        expected = NormalDist().inv_cdf(min(max(share, cut), 1 - cut))
        assert score == pytest.approx(expected, abs=1e-10)


def test_equal_values_have_equal_scores():
    scores = normal_scores(torch.tensor([3.0, 1.0, 3.0, 2.0], dtype=torch.double))
    assert scores[0] == scores[2] == scores.max()


def test_scores_do_not_depend_on_the_units():
    values = torch.randn(50, dtype=torch.double)
    assert torch.equal(normal_scores(values), normal_scores(1e3 * values.exp()))


def test_one_value_and_none():
    assert normal_scores(torch.tensor([7.0])).tolist() == [0.0]
    assert normal_scores(torch.empty(0)).shape == (0,)
    assert maximized_scores(torch.empty(0, 1)).shape == (0, 1)


def test_maximized_scores_rise_with_the_outcome():
    Y = torch.randn(20, 1, dtype=torch.double)
    scores = maximized_scores(Y)
    assert scores.shape == (20, 1)
    assert torch.equal(scores.argsort(dim=0), Y.argsort(dim=0))
    torch.testing.assert_close(scores, -normal_scores(-Y[:, 0]).unsqueeze(-1))
