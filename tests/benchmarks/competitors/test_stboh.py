from __future__ import annotations

import math

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.competitors import HandTunedGP

PRIORS = {"lengthscale": (0.0, 1.0), "outputscale": (-1.0, 1.0), "noise": (-6.0, 3.0)}


def parts(model):
    return {
        "lengthscale": (model.covar_module.base_kernel, "lengthscale"),
        "outputscale": (model.covar_module, "outputscale"),
        "noise": (model.likelihood.noise_covar, "noise"),
    }


@pytest.fixture
def model(bounds, target):
    return HandTunedGP(bounds).model(*target)


@pytest.mark.parametrize("name", PRIORS)
def test_hyperpriors(model, name):
    module, attribute = parts(model)[name]
    location, scale = PRIORS[name]
    prior = getattr(module, f"{attribute}_prior")
    value = torch.tensor([0.01, 0.3, 2.0])
    normal = torch.distributions.Normal(location, scale)
    torch.testing.assert_close(prior.log_prob(value), normal.log_prob(value.log()) - value.log())
    constraint = getattr(module, f"raw_{attribute}_constraint")
    for bound, p in ((constraint.lower_bound, 0.01), (constraint.upper_bound, 0.99)):
        assert normal.cdf(bound.log()).item() == pytest.approx(p, abs=1e-5)
    start = getattr(module, attribute)
    torch.testing.assert_close(start, torch.full_like(start, math.exp(location)), rtol=1e-5, atol=0)


def test_the_bound_is_the_mean_and_1_8_deviations(bounds, target):
    acquisition = HandTunedGP(bounds).acquisition(*target)
    x = torch.rand(4, 1, 2, dtype=torch.double)
    posterior = acquisition.model.posterior(x)
    expected = posterior.mean.flatten() + 1.8 * posterior.variance.sqrt().flatten()
    torch.testing.assert_close(acquisition(x), expected)


def test_hyperparameters_stay_between_their_percentiles(bounds):
    X = bounds[0] + 2 * torch.rand(12, 2, dtype=torch.double)
    model = HandTunedGP(bounds).model(X, X[:, :1])  # no noise, and no second input
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    for name, (module, attribute) in parts(model).items():
        location, scale = PRIORS[name]
        z = (getattr(module, attribute).log() - location) / scale
        assert z.abs().max() < 2.3264


def test_history_is_ignored(history, bounds, target):
    candidates = bounds[0] + 2 * torch.rand(50, 2, dtype=torch.double)
    with_history = HandTunedGP.build(history, bounds, 0).suggest(*target, candidates)
    assert with_history == HandTunedGP.build({}, bounds, 1).suggest(*target, candidates)
