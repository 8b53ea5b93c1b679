"""What RGPE and SGPT share: predictions by the weighted formulas, weights that stay frozen."""

from __future__ import annotations

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import RankWeightedGP, SourceGPs, TwoStageTransferGP
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)
TEST_X = FAMILY.inputs(2, 4, seed=5)
CLASSES = [RankWeightedGP, TwoStageTransferGP]


def fit(model):
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    return model


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


@pytest.mark.parametrize("model_class", CLASSES)
def test_batches_have_weights_of_their_own(model_class):
    X = FAMILY.inputs(3, 6, seed=4)
    Y = torch.stack([FAMILY.value(X[0]), -FAMILY.value(X[1]), FAMILY.value(X[2], 0.4)])
    model = model_class(X, Y, PRIOR)
    assert model.weights.shape == (3, 3)
    for b in range(3):
        single = model_class(X[b], Y[b], PRIOR)
        shares = single.ensemble_weights.shares
        torch.testing.assert_close(model.ensemble_weights.shares[b], shares)


def test_monotonic_maps_of_the_targets_outcomes_do_not_change_ranks():
    X, Y = FAMILY.target(7)
    model, exponential = (
        TwoStageTransferGP(X, outcomes, PRIOR, outcome_transform=None)
        for outcomes in (Y, torch.exp(Y / 10))
    )
    assert torch.equal(model.weights, exponential.weights)
    assert not torch.equal(model.weights, TwoStageTransferGP(X, -Y, PRIOR).weights)
