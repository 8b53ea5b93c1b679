"""WSGP: what its weights and its normalization do."""

from __future__ import annotations

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import WeightedSourceGP
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(6, seed=31)


def build(**kwargs):
    return WeightedSourceGP(*FAMILY.target(4), FAMILY.sources((8, 5)), **kwargs)


def test_weights_start_equal():
    torch.testing.assert_close(build().weights, torch.full((2,), 0.5, dtype=torch.double))


def test_normalization_keeps_the_variance_of_sources():
    for weight in (0.1, 3.0):
        model = build(normalize=True)
        model.conditional.kernel.task_weights.weights = torch.tensor(weight)
        covariances = model.conditional.kernel.task_covariances()
        own = covariances[torch.arange(2), torch.arange(2), torch.arange(2)]
        torch.testing.assert_close(own, torch.ones_like(own))


def test_normalization_is_a_rescaling_of_kernels():
    model, normalized = build(), build(normalize=True)
    for kernel, weight in zip(normalized.covar_modules[:-1], normalized.weights, strict=True):
        kernel.outputscale = kernel.outputscale.detach() * (1 + weight.detach())
    posterior, expected = normalized.posterior(TEST_X), model.posterior(TEST_X)
    torch.testing.assert_close(posterior.mean, expected.mean)
    torch.testing.assert_close(posterior.variance, expected.variance)


def test_sources_without_weight_do_not_matter():
    model = build()
    model.conditional.kernel.task_weights.weights = torch.tensor([1e-6, 1e-6])
    prior = model.mean_module(TEST_X)
    assert prior.abs().max() < 1e-4
    torch.testing.assert_close(
        model.covar_module(TEST_X).to_dense(),
        model.residual_covar_module(TEST_X).to_dense(),
        rtol=1e-3,
        atol=1e-4,
    )


def test_a_source_of_noise_gets_less_weight():
    X, Y = FAMILY.target(12)
    history = FAMILY.sources((20,))
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(20, 1, generator=generator, dtype=torch.double)
    history["noise"] = (FAMILY.inputs(20, seed=9), noise)
    model = WeightedSourceGP(X, Y, history, normalize=True)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    helpful, useless = model.weights
    scales = [kernel.outputscale for kernel in model.covar_modules]
    assert helpful * scales[0] > 10 * useless * scales[1]
