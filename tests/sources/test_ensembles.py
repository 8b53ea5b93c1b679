from functools import partial

import pytest
import torch

from botorch_transfer import RankWeightedGP, SourceGPs, TwoStageTransferGP
from botorch_transfer.gp.tasks import lexical_order
from botorch_transfer.sources import ensembles as ensemble
from botorch_transfer.sources.ensembles import (
    base_samples,
    misranked_by_the_left_out,
    misranked_pairs,
    rank_weights,
    symmetric_root,
)
from tests.families import ShiftedSines
from tests.fits import fit_model
from tests.gp.padded import points

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)
TEST_X = FAMILY.inputs(2, 4, seed=5)
CLASSES = [RankWeightedGP, TwoStageTransferGP]


fit = partial(fit_model, num_restarts=0)


def own_posterior(model, A):
    """The posterior of the target's own GP, by dense formulas in the model's own units."""
    model.eval()
    (X,), y = model.train_inputs, model.train_targets
    K = model.covar_module(X).to_dense() + model.likelihood.noise.expand(len(y)).diag()
    cross = model.covar_module(A, X).to_dense()
    mean = model.mean_module(A) + cross @ torch.linalg.solve(K, y - model.mean_module(X))
    covariance = model.covar_module(A).to_dense() - cross @ torch.linalg.solve(K, cross.mT)
    return mean, covariance


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("model_class", CLASSES)
def test_posterior_by_the_weighted_formulas(model_class, n, known_noise):
    X, Y = FAMILY.target(n)
    noise = torch.full_like(Y, 0.5) if known_noise else None
    model = fit(model_class(X, Y, PRIOR, noise))
    w, own = model.weights, model.target_weight
    torch.testing.assert_close(w.sum() + own, torch.ones_like(own))
    posterior, transform = model.posterior(TEST_X), model.outcome_transform
    for b in range(2):
        mean, covariance = own_posterior(model, TEST_X[b])
        mean = own * mean + w @ PRIOR.mean(TEST_X[b])
        if model_class is RankWeightedGP:
            sources = PRIOR.covariance(TEST_X[b])
            covariance = own**2 * covariance + (w[:, None, None] ** 2 * sources).sum(0)
        expected = transform.untransform(mean.unsqueeze(-1))[0]
        torch.testing.assert_close(posterior.mean[b], expected)
        covariance = covariance * transform.stdvs.square()
        actual = posterior.distribution.covariance_matrix[b]
        torch.testing.assert_close(actual, covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("model_class", CLASSES)
def test_without_a_pair_all_weights_are_equal(model_class, n):
    model = fit(model_class(*FAMILY.target(n), PRIOR))
    assert model.weights.tolist() == [0.25] * 3
    assert float(model.target_weight) == 0.25


@pytest.mark.parametrize("model_class", CLASSES)
def test_weights_stay_frozen_between_fits(model_class):
    model = fit(model_class(*FAMILY.target(5), PRIOR))
    before = model.ensemble_weights.shares.clone()
    model.posterior(TEST_X)
    X = FAMILY.inputs(3, seed=8)
    conditioned = model.condition_on_observations(X, 100 - FAMILY.value(X))
    assert torch.equal(conditioned.ensemble_weights.shares, before)
    again = fit(model_class(*FAMILY.target(5), PRIOR))
    assert torch.equal(again.ensemble_weights.shares, before)


@pytest.mark.parametrize("model_class", CLASSES)
def test_weights_are_those_of_the_fitted_hyperparameters(model_class):
    model = fit(model_class(*FAMILY.target(8), PRIOR))
    fitted = model.ensemble_weights.shares.clone()
    model.update_weights()
    assert torch.equal(model.ensemble_weights.shares, fitted)
    assert not model.training
    model.train().update_weights()
    assert model.training


@pytest.mark.parametrize("model_class", CLASSES)
def test_an_inverted_source_has_no_weight(model_class):
    X, Y = FAMILY.target(10)
    A = FAMILY.inputs(25, seed=3)
    history = {"same": (A, FAMILY.value(A)), "inverted": (A, -FAMILY.value(A))}
    model = fit(model_class(X, Y, SourceGPs.fit(history, num_restarts=0)))
    assert model.weights[1] == 0
    assert model.weights[0] > 0.2


def test_monotonic_maps_of_the_targets_outcomes_do_not_change_ranks():
    X, Y = FAMILY.target(7)
    model, exponential = (
        TwoStageTransferGP(X, outcomes, PRIOR, outcome_transform=None)
        for outcomes in (Y, torch.exp(Y / 10))
    )
    assert torch.equal(model.weights, exponential.weights)
    assert not torch.equal(model.weights, TwoStageTransferGP(X, -Y, PRIOR).weights)


# -------------------------------------------------------------------------------------- RGPE


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


def canonical_order(X, Y):
    return lexical_order(*X.flip(-1).unbind(-1), Y)


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("known_noise", [False, True])
def test_weights_by_direct_computation_on_the_same_draws(n, known_noise, monkeypatch):
    X, Y = FAMILY.target(n)
    Y = Y + 3 * torch.sin(20 * X[:, :1])
    Yvar = torch.linspace(0.5, 4.0, n).double().unsqueeze(-1) if known_noise else None
    monkeypatch.setattr(ensemble, "NUM_SAMPLES", 40)
    monkeypatch.setattr(ensemble, "SEED", 3)
    model = fit(RankWeightedGP(X, Y, PRIOR, Yvar))
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


def test_draws_follow_from_the_seed(monkeypatch):
    X, Y = FAMILY.target(6)
    Y = Y + 3 * torch.sin(20 * X[:, :1])
    weights = []
    for seed in (0, 0, 1):
        monkeypatch.setattr(ensemble, "SEED", seed)
        weights.append(RankWeightedGP(X, Y, PRIOR).weights)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    torch.testing.assert_close(weights[0], weights[2], atol=0.15, rtol=0)
    assert base_samples(X.float(), 4, seed=0).dtype == torch.float


def test_many_points_are_drawn_for_in_parts(monkeypatch):
    X, Y = FAMILY.target(6)
    Y = Y + 3 * torch.sin(20 * X[:, :1])
    whole = RankWeightedGP(X, Y, PRIOR).weights
    monkeypatch.setattr("botorch_transfer.gp.conditioned.MAX_ELEMENTS", 36 * 50)
    torch.testing.assert_close(RankWeightedGP(X, Y, PRIOR).weights, whole)


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
    values, Y = points(2, 3, 4, n), points(2, n, seed=2).mul(5).round()
    values[0, 0] = values[0, 0].mul(3).round()  # ties
    counts = misranked_pairs(values, Y)
    assert counts.shape == (2, 3, 4)
    for b in range(2):
        for m in range(3):
            for s in range(4):
                assert float(counts[b, m, s]) == count(values[b, m, s], Y[b])
    torch.testing.assert_close(misranked_pairs(values[:, 0], Y), counts[:, 0])


@pytest.mark.parametrize("n", [1, 2, 6])
def test_misranked_by_the_left_out_by_counting(n):
    values, Y = points(3, n, n), points(n, seed=2).mul(4).round()
    counts = misranked_by_the_left_out(values, Y)
    for s in range(3):
        total = sum(
            0.5 * count(values[s, j, [j, k]], Y[[j, k]])
            for j in range(n)
            for k in range(n)
            if j != k
        )
        assert float(counts[s]) == total


# -------------------------------------------------------------------------------------- SGPT


@pytest.mark.parametrize("bandwidth", [0.1, 0.5])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_kernel_weights_by_direct_computation(n, bandwidth, monkeypatch):
    X, Y = FAMILY.target(n)
    Y = Y + 4 * torch.sin(20 * X[:, :1])
    means = PRIOR.mean(X)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    weights = []
    for mean in means:
        discordant = sum(float((mean[i] < mean[j]) != (Y[i] < Y[j])) for i, j in pairs)
        t = discordant / len(pairs) / bandwidth
        weights.append(0.75 * (1 - t**2) if t <= 1 else 0.0)
    expected = torch.tensor([*weights, 0.75], dtype=torch.double)
    expected = expected / expected.sum()
    monkeypatch.setattr(ensemble, "BANDWIDTH", bandwidth)
    model = TwoStageTransferGP(X, Y, PRIOR)
    torch.testing.assert_close(model.weights, expected[:-1])
    torch.testing.assert_close(model.target_weight, expected[-1])


def test_pairs_of_equal_outcomes_do_not_count():
    X, Y = FAMILY.target(4)
    constant = TwoStageTransferGP(X, torch.ones_like(Y), PRIOR)
    assert constant.weights.tolist() == [0.25] * 3


def test_uncertainty_is_the_own_models():
    X, Y = FAMILY.target(5)
    shifted = TwoStageTransferGP(X, Y, PRIOR)
    inverted = TwoStageTransferGP(X, 100 - Y, PRIOR)
    A = FAMILY.inputs(4)
    scale = (shifted.outcome_transform.stdvs / inverted.outcome_transform.stdvs).square()
    expected = inverted.posterior(A).variance * scale
    torch.testing.assert_close(shifted.posterior(A).variance, expected)
