from __future__ import annotations

import math

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import RankWeightedGP, SourceGPs
from botorch_transfer.models import rank_weighted
from botorch_transfer.models.ensemble import misranked_pairs
from botorch_transfer.models.rank_weighted import (
    base_samples,
    canonical_order,
    leave_one_out_draws,
    misranked_by_the_left_out,
    rank_weights,
    symmetric_root,
)
from tests.families import ShiftedSines

FAMILY = ShiftedSines()

PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)


def misranked(f, y) -> float:
    pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if y[i] < y[j]]
    return float(sum(f[i] >= f[j] for i, j in pairs))


def direct_weights(model, X, y, noise, num_samples, seed):
    """RGPE by loops over draws, models and pairs, with GPs that are refitted without a point."""
    num_tasks, n = model.prior.num_tasks, len(y)
    own, error, sources = base_samples(X, num_samples, seed)
    root, mean = symmetric_root(PRIOR.covariance(X)), PRIOR.mean(X)
    K, prior_mean = model.covar_module(X).to_dense(), model.mean_module(X)
    own_root = symmetric_root(K)
    losses = torch.empty(num_tasks + 1, num_samples)
    for s in range(num_samples):
        for m in range(num_tasks):
            losses[m, s] = misranked(mean[m] + root[m] @ sources[s], y)
        f, total = own_root @ own[s], 0.0
        for j in range(n):
            keep = torch.arange(n) != j
            errors = (y - prior_mean - f - error[s] * noise.sqrt())[keep]
            solved = torch.linalg.solve(K[keep][:, keep] + noise[keep].diag(), errors)
            draw = prior_mean + f + K[:, keep] @ solved
            for k in range(n):
                if y[j] != y[k]:
                    total += 0.5 * float((draw[j] < draw[k]) != (y[j] < y[k]))
        losses[num_tasks, s] = total
    limit = losses[-1].quantile(0.95)
    for m in range(num_tasks):
        if losses[m].quantile(0.5) > limit:
            losses[m] = torch.inf
    best = losses == losses.amin(dim=0)
    return (best / best.sum(dim=0)).mean(dim=1)


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("known_noise", [False, True])
def test_weights_by_direct_computation_on_the_same_draws(n, known_noise):
    X, Y = FAMILY.target(n)
    Y = Y + 3 * torch.sin(20 * X[:, :1])
    Yvar = torch.linspace(0.5, 4.0, n).double().unsqueeze(-1) if known_noise else None
    model = RankWeightedGP(X, Y, PRIOR, Yvar, num_samples=40, seed=3)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    y, noise = model.train_targets, model.likelihood.noise.expand(n)
    order = canonical_order(X, y)
    with torch.no_grad():
        expected = direct_weights(model, X[order], y[order], noise[order], 40, 3)
    shares = torch.cat([model.weights, model.target_weight.unsqueeze(-1)])
    torch.testing.assert_close(shares, expected.double())
    assert 0 < float(model.target_weight) < 1


def test_weights_of_losses():
    sources = torch.tensor([[0.0, 1.0, 2.0, 0.0], [0.0, 0.0, 1.0, 5.0], [9.0, 9.0, 9.0, 0.0]])
    own = torch.tensor([3.0, 0.0, 1.0, 2.0])
    # The third source's median loss is above the 95th percentile of the target's own.
    expected = torch.tensor([1 / 2 + 1, 1 / 2 + 1 / 2 + 1 / 2, 0, 1 / 2 + 1 / 2]) / 4
    torch.testing.assert_close(rank_weights(sources, own), expected)


def test_which_sources_are_left_out():
    own = torch.arange(101.0)  # its 95th percentile is 95
    for median, is_left_out in ((94.0, False), (95.0, False), (96.0, True)):
        # Half of the draws misrank nothing: the mean is no measure.
        losses = torch.cat([torch.zeros(50), torch.full((51,), median)])
        assert bool(rank_weights(losses.unsqueeze(0), own)[0] == 0) is is_left_out
    # Nor is it one of a few draws that misrank far more than the others.
    losses = torch.cat([torch.full((60,), 1.0), torch.full((41,), 1e4)])
    assert rank_weights(losses.unsqueeze(0), own)[0] > 0


def test_draws_follow_from_the_seed():
    X, Y = FAMILY.target(6)
    Y = Y + 3 * torch.sin(20 * X[:, :1])
    weights = [RankWeightedGP(X, Y, PRIOR, seed=seed).weights for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    torch.testing.assert_close(weights[0], weights[2], atol=0.15, rtol=0)
    assert base_samples(X.float(), 4, seed=0).dtype == torch.float


def test_many_points_are_drawn_for_in_parts(monkeypatch):
    X, Y = FAMILY.target(6)
    Y = Y + 3 * torch.sin(20 * X[:, :1])
    whole = RankWeightedGP(X, Y, PRIOR).weights
    monkeypatch.setattr(rank_weighted, "MAX_ELEMENTS", 36 * 50)
    torch.testing.assert_close(RankWeightedGP(X, Y, PRIOR).weights, whole)


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="num_samples must be positive, not 0"):
        RankWeightedGP(*FAMILY.target(3), PRIOR, num_samples=0)


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
