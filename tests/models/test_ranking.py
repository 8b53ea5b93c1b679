from __future__ import annotations

import math

import pytest
import torch

from botorch_transfer.models.ensemble import misranked_pairs
from botorch_transfer.models.rank_weighted import (
    canonical_order,
    leave_one_out_draws,
    misranked_by_the_left_out,
    symmetric_root,
)


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.double)


def count(values, Y) -> float:
    """Misranked pairs, one after another."""
    total = 0.0
    for i in range(len(Y)):
        for j in range(i):
            if Y[i] != Y[j]:
                agreement = (values[i] - values[j]).sign() * (Y[i] - Y[j]).sign()
                total += {1.0: 0.0, 0.0: 0.5, -1.0: 1.0}[float(agreement)]
    return total


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_misranked_pairs_by_counting(n):
    values, Y = rand(2, 3, 4, n), rand(2, n, seed=1).mul(5).round()
    values[0, 0] = values[0, 0].mul(3).round()  # ties
    counts = misranked_pairs(values, Y)
    assert counts.shape == (2, 3, 4)
    for b in range(2):
        for m in range(3):
            for s in range(4):
                assert float(counts[b, m, s]) == count(values[b, m, s], Y[b])
    torch.testing.assert_close(misranked_pairs(values[:, 0], Y), counts[:, 0])


def test_reversed_values_misrank_all_pairs():
    Y = torch.tensor([3.0, 1.0, 2.0, 2.0])
    assert misranked_pairs(-Y.unsqueeze(0), Y) == 5
    assert misranked_pairs(Y.unsqueeze(0), Y) == 0


@pytest.mark.parametrize("n", [1, 2, 6])
def test_misranked_by_the_left_out_by_counting(n):
    values, Y = rand(3, n, n), rand(n, seed=1).mul(4).round()
    counts = misranked_by_the_left_out(values, Y)
    for s in range(3):
        total = sum(
            0.5 * count(values[s, j, [j, k]], Y[[j, k]])
            for j in range(n)
            for k in range(n)
            if j != k
        )
        assert float(counts[s]) == total


def test_canonical_order_is_that_of_the_points():
    X, Y = rand(2, 6, 2).mul(2).round(), rand(2, 6, seed=1).mul(2).round()
    shuffle = torch.tensor([3, 0, 5, 1, 4, 2])
    one, other = canonical_order(X, Y), canonical_order(X[:, shuffle], Y[:, shuffle])
    rows = torch.cat([Y.unsqueeze(-1), X], dim=-1)
    for b in range(2):
        expected = sorted(rows[b].tolist())
        assert rows[b][one[b]].tolist() == expected
        assert rows[b][shuffle][other[b]].tolist() == expected


def test_symmetric_root_of_a_singular_matrix():
    half = rand(3, 5, 2)
    covariance = half @ half.mT
    root = symmetric_root(covariance)
    torch.testing.assert_close(root, root.mT)
    torch.testing.assert_close(root @ root, covariance)


def test_leave_one_out_draws_by_dropping_points():
    X, noise, residual = rand(2, 5, 2), 0.1 + rand(2, 5, seed=1), rand(2, 5, seed=2)
    covariance = torch.exp(-torch.cdist(X, X).square())
    latent, error = torch.randn(2, 4, 5, dtype=torch.double)
    draws = leave_one_out_draws(covariance, noise, residual, latent, error)
    assert draws.shape == (2, 4, 5, 5)
    for b in range(2):
        prior = latent @ symmetric_root(covariance[b])
        for j in range(5):
            keep = torch.arange(5) != j
            K = covariance[b][keep][:, keep] + noise[b, keep].diag()
            errors = residual[b, keep] - prior[:, keep] - error[:, keep] * noise[b, keep].sqrt()
            update = errors @ torch.linalg.solve(K, covariance[b][keep])
            torch.testing.assert_close(draws[b, :, j], prior + update)


def test_leave_one_out_draws_have_the_posteriors_moments():
    X, noise, residual = rand(4, 1), torch.full((4,), 0.05).double(), rand(4, seed=2)
    covariance = torch.exp(-torch.cdist(X, X).square())
    latent, error = torch.randn(2, 100_000, 4, dtype=torch.double)
    draws = leave_one_out_draws(covariance, noise, residual, latent, error)[:, 1]
    keep = torch.tensor([0, 2, 3])
    gain = torch.linalg.solve(covariance[keep][:, keep] + noise[keep].diag(), covariance[keep])
    tolerance = 5 / math.sqrt(100_000)
    expected = covariance - covariance[:, keep] @ gain
    torch.testing.assert_close(draws.mean(0), residual[keep] @ gain, atol=tolerance, rtol=0)
    torch.testing.assert_close(torch.cov(draws.mT), expected, atol=tolerance, rtol=0)
