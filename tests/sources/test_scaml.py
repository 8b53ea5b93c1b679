"""ScaML-GP against its formula, and its defaults against the paper."""

import math
from functools import cache

import pytest
import torch
from gpytorch.kernels import MaternKernel
from gpytorch.priors import GammaPrior, LogNormalPrior
from torch.testing import assert_close

from botorch_transfer import (
    JointScaMLGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourceHierarchy,
)
from botorch_transfer.gp import combine
from botorch_transfer.gp.expansion import expand
from tests.families import SCALE, ShiftedSines
from tests.fits import fit_model, log_posterior
from tests.sources.scaml_twin import sources_of, twin_of

SIZES = {1: (9,), 2: (4, 11), 7: (5, 1, 12, 8, 3, 10, 7)}
FAMILY = ShiftedSines()


@cache
def fitted(num_tasks, family):
    return SourceGPs.fit(family.sources(SIZES[num_tasks]), num_restarts=0)


def make_model(num_tasks, dim, n, dtype=torch.double, known_noise=False, **options):
    """A model in a generic state: distinct weights, lengthscales, and so on."""
    family = ShiftedSines(dim, dtype)
    prior = fitted(num_tasks, family)
    X, Y = family.target(n)
    noise = torch.linspace(0.2, 2.0, n).to(Y).unsqueeze(-1) if known_noise else None
    model = ScaMLGP(X, Y, prior, train_Yvar=noise, **options)
    with torch.no_grad():
        model.mean_module.task_weights.weights = torch.linspace(0.2, 0.9, num_tasks)
        residual = model.residual_covar_module
        residual.outputscale = 0.3
        residual.base_kernel.lengthscale = torch.linspace(0.4, 0.9, dim).to(Y)
        if not known_noise:
            model.likelihood.noise = 4e-3
    return model.eval(), family.inputs(6, seed=91)


GRID = pytest.mark.parametrize(
    ("num_tasks", "dim", "n"), [(1, 6, 1), (2, 1, 0), (2, 6, 8), (7, 1, 8), (7, 6, 0), (7, 6, 1)]
)


@GRID
@pytest.mark.parametrize("known_noise", [False, True])
def test_posterior_equals_the_formula(num_tasks, dim, n, known_noise):
    model, X = make_model(num_tasks, dim, n, known_noise=known_noise)
    mean, covariance = twin_of(model).posterior(X)
    transform = model.outcome_transform
    scale, offset = transform.stdvs.squeeze(), transform.means.squeeze()
    posterior = model.posterior(X)
    close = {"rtol": 1e-6, "atol": 1e-6}
    assert_close(posterior.mean.squeeze(-1), mean * scale + offset, **close)
    assert_close(posterior.distribution.covariance_matrix, covariance * scale**2, **close)
    variance = covariance.diag() * scale**2
    assert_close(model.posterior(X.unsqueeze(-2)).variance.flatten(), variance, **close)


@GRID
def test_derivatives_equal_the_formulas(num_tasks, dim, n):
    model, X = make_model(num_tasks, dim, n)
    transform = model.outcome_transform
    cotangent = torch.randn(6, dtype=torch.double), torch.randn(6, 6, dtype=torch.double)

    def gradient(moments):
        inputs = X.clone().requires_grad_()
        mean, covariance = moments(inputs)
        total = (cotangent[0] * mean).sum() + (cotangent[1] * covariance).sum()
        return torch.autograd.grad(total, inputs)[0]

    def fast(inputs):
        distribution = model.posterior(inputs).distribution
        return distribution.mean, distribution.covariance_matrix

    def naive(inputs):
        mean, covariance = twin_of(model).posterior(inputs)
        return mean * transform.stdvs.squeeze(), covariance * transform.stdvs.squeeze() ** 2

    assert_close(gradient(fast), gradient(naive), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("num_tasks", [1, 2, 7])
@pytest.mark.parametrize("dim", [1, 6])
def test_marginal_likelihood_equals_the_formulas(num_tasks, dim):
    model, _ = make_model(num_tasks, dim, n=8)
    residual = model.residual_covar_module
    leaves = {
        "weights": model.weights.detach().clone().requires_grad_(),
        "lengthscale": residual.base_kernel.lengthscale.detach().squeeze(-2).clone(),
        "outputscale": residual.outputscale.detach().clone(),
        "noise": model.likelihood.noise.detach().clone(),
    }
    for leaf in leaves.values():
        leaf.requires_grad_()
    expected = twin_of(model, **leaves).log_likelihood()
    expected_gradients = torch.autograd.grad(expected, list(leaves.values()))

    model.train()
    output = model(*model.train_inputs)
    value = model.likelihood(output).log_prob(model.train_targets)
    raw = [
        model.mean_module.task_weights.raw_weights,
        residual.base_kernel.raw_lengthscale,
        residual.raw_outputscale,
        model.likelihood.noise_covar.raw_noise,
    ]
    gradients = torch.autograd.grad(value, raw)
    assert_close(value, expected, rtol=1e-6, atol=1e-6)
    # The weights are optimized as they are, the others as logarithms.
    factors = [1.0, *(leaf.detach() for name, leaf in leaves.items() if name != "weights")]
    for gradient, reference, factor in zip(gradients, expected_gradients, factors, strict=True):
        assert_close(gradient.flatten(), (reference * factor).flatten(), rtol=1e-6, atol=1e-6)


def test_objective_is_likelihood_plus_hyperpriors():
    model, _ = make_model(2, 6, n=8, hyperparameters="paper")
    residual = model.residual_covar_module
    value = log_posterior(model)
    log_prior = (
        GammaPrior(1.0, 1.0).log_prob(model.weights).sum()
        + LogNormalPrior(0.5, 1.5).log_prob(residual.base_kernel.lengthscale).sum()
        + LogNormalPrior(-2.0, 3.0).log_prob(residual.outputscale).sum()
        + LogNormalPrior(-8.0, 2.0).log_prob(model.likelihood.noise).sum()
    ).double()
    expected = (twin_of(model).log_likelihood() + log_prior) / 8
    assert_close(value, expected, rtol=1e-6, atol=1e-6)


# -------------------------------------------------------------------------------------- how it acts


@pytest.mark.parametrize("model_class", [ScaMLGP, JointScaMLGP, SequentialHierarchicalGP])
def test_it_stays_honest_with_one_and_two_points(model_class):
    """With the paper's hyperpriors the residual vanishes: z-scores are up to a hundred."""
    X, test_X = FAMILY.inputs(30, seed=4), FAMILY.inputs(60, seed=93)
    sources = {f"{shift}": (X, FAMILY.value(X, shift)) for shift in (0.6, 0.9, 1.2)}
    for n in (1, 2):
        model = fit_model(model_class(*FAMILY.target(n), sources))
        posterior = model.posterior(test_X, observation_noise=True)
        z = (FAMILY.value(test_X) - posterior.mean) / posterior.variance.sqrt()
        assert 0.3 < z.square().mean().sqrt().item() < 4.0


def test_the_residuals_scale_is_that_of_the_sources_differences():
    X, Y = FAMILY.target(0)
    grid = FAMILY.inputs(20, seed=4)
    alike, apart = (
        [(grid, FAMILY.value(grid, scale * shift)) for shift in (0.0, 0.3, 0.6, 0.9)]
        for scale in (0.1, 1.0)
    )
    models = [ScaMLGP(X, Y, sources) for sources in (alike, apart)]
    scales = [model.residual_covar_module.outputscale.item() for model in models]
    assert scales[0] < 0.05 < scales[1]
    prior = SourceGPs.fit_once(apart)
    assert scales[1] == pytest.approx(prior.residual_variance)
    stack = SourceHierarchy.fit(apart)
    expected = (stack.gps.outputscale[1:].clamp(1e-2, 10.0).log().sum() + math.log(0.15)) / 4
    assert stack.residual_variance == pytest.approx(expected.exp().item())


@pytest.mark.parametrize("noisy_sources", [False, True])
def test_many_noisy_points_are_known_to_be_noisy(noisy_sources):
    """With the paper's noise variance, at most 0.01, the model follows the noise."""
    noise, generator = 0.6 * SCALE, torch.Generator().manual_seed(0)

    def noisy(Y):
        return Y + noise * torch.randn(Y.shape, generator=generator, dtype=Y.dtype).to(Y)

    sources, (X, Y) = FAMILY.sources((30, 30, 30)), FAMILY.target(100)
    if noisy_sources:
        sources = {name: (old_X, noisy(old_Y)) for name, (old_X, old_Y) in sources.items()}
    found = {}
    for name in ("cautious", "paper"):
        model = ScaMLGP(X, noisy(Y), SourceGPs.fit_once(sources), hyperparameters=name)
        fit_model(model)
        found[name] = model.likelihood.noise.sqrt().item() * model.outcome_transform.stdvs.item()
    assert found["cautious"] == pytest.approx(noise, rel=0.2)
    assert found["paper"] <= 0.1 * model.outcome_transform.stdvs.item() + 1e-6


def test_a_relevant_source_outweighs_an_irrelevant_one():
    X = FAMILY.inputs(30, seed=1)
    noise = torch.randn(30, 1, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    sources = {"relevant": (X, FAMILY.value(X)), "noise": (X, 50.0 + 10.0 * noise)}
    model = fit_model(ScaMLGP(*FAMILY.target(8), sources))
    relevant, irrelevant = model.weights.tolist()
    assert relevant > 0.5
    assert irrelevant < 0.1


def test_users_residual_kernel_is_used():
    kernel = MaternKernel(nu=2.5, ard_num_dims=2).double()
    kernel.lengthscale = 0.37
    model = ScaMLGP(*FAMILY.target(0), FAMILY.sources(), covar_module=kernel)
    X = FAMILY.inputs(4)
    sources = sources_of(model.prior)
    expected = kernel(X).to_dense()
    for source, weight in zip(sources, model.weights, strict=True):
        expected = expected + weight**2 * source.covariance(X, X)
    assert_close(model.covar_module(X).to_dense(), expected)
    assert model.residual_covar_module is kernel


def test_large_sums_of_kernels_are_not_expanded(monkeypatch):
    model, X = make_model(2, 1, 3)
    assert expand(model.mean_module, model.covar_module, X) is not None
    monkeypatch.setattr(combine, "MAX_NUMBERS", 1)
    assert expand(model.mean_module, model.covar_module, X) is None
