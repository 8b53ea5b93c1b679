from __future__ import annotations

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.utils.transforms import normalize

from benchmarks.competitors import CopulaProcess
from benchmarks.competitors.copula import maximized_scores


@pytest.fixture(scope="module")
def built(history, bounds):
    return CopulaProcess.build(history, bounds, 0, steps=50)


def test_the_posterior_is_the_networks_corrected_by_the_residuals(built, bounds, target):
    X, Y = target
    scores = maximized_scores(Y)
    model = built.model(X, scores)
    gp = model.residual_gp
    unit = normalize(X, bounds)
    mean, deviation = built.network(unit)
    torch.testing.assert_close(gp.train_targets, (scores[:, 0] - mean) / deviation)

    query = torch.rand(3, 2, dtype=torch.double)
    K = gp.covar_module(unit).to_dense() + gp.likelihood.noise * torch.eye(5)
    k = gp.covar_module(query, unit).to_dense()
    constant = gp.mean_module(unit)
    m = gp.mean_module(query) + k @ torch.linalg.solve(K, gp.train_targets - constant)
    C = gp.covar_module(query).to_dense() - k @ torch.linalg.solve(K, k.T)
    mean, deviation = built.network(query)
    found = model.posterior(bounds[0] + 2 * query)
    torch.testing.assert_close(found.mean[:, 0], mean + deviation * m, rtol=0, atol=1e-6)
    covariance = torch.diag(deviation) @ C @ torch.diag(deviation)
    torch.testing.assert_close(found.distribution.covariance_matrix, covariance, rtol=0, atol=1e-6)


def test_without_data_the_posterior_is_the_networks(built, bounds):
    model = built.model(torch.empty(0, 2), torch.empty(0, 1))
    x = torch.rand(4, 2, dtype=torch.double)
    mean, deviation = built.network(normalize(x, bounds))
    posterior = model.posterior(x)
    torch.testing.assert_close(posterior.mean[:, 0], mean)
    torch.testing.assert_close(posterior.variance[:, 0], deviation.square())
    assert model.num_outputs == 1
    assert model.batch_shape == ()


def test_acquisitions(built, target):
    X, Y = target
    assert isinstance(built.acquisition(X[:0], Y[:0]), UpperConfidenceBound)
    improvement = built.acquisition(X, Y)
    assert isinstance(improvement, LogExpectedImprovement)
    assert improvement.best_f == maximized_scores(Y).max()


def test_choices_do_not_depend_on_the_units(history, bounds, target):
    X, Y = target
    other = {name: (inputs, outcomes.exp()) for name, (inputs, outcomes) in history.items()}
    candidates = bounds[0] + 2 * torch.rand(200, 2, dtype=torch.double)
    first, second = (CopulaProcess.build(data, bounds, 0, steps=20) for data in (history, other))
    assert first.suggest(X, Y, candidates) == second.suggest(X, 5 * Y.exp(), candidates)
