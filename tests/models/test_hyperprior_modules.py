"""Mean, kernel and noise that a hyperprior makes: starts, bounds, and what is registered."""

from __future__ import annotations

import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior

from botorch_transfer import Hyperprior
from botorch_transfer.data import default_context
from botorch_transfer.hyperpriors.priors import LogDensityGammaPrior
from botorch_transfer.models.hyperprior import (
    hyperprior_kernel,
    hyperprior_mean,
    hyperprior_noise,
)
from tests.pretraining.hyperpriors import fit, specified

BATCH = torch.Size([3])


@pytest.fixture(scope="module")
def empirical() -> Hyperprior:
    return fit("empirical")


def test_mean_starts_at_its_hyperpriors_mean():
    mean = hyperprior_mean(specified(), BATCH)
    torch.testing.assert_close(mean.constant, torch.full((3,), 2.0).double())
    assert isinstance(mean.mean_prior, NormalPrior)
    assert mean.constant.requires_grad


def test_a_uniform_mean_stays_within_its_bounds():
    mean = hyperprior_mean(specified(constant=UniformPrior(-1.0, 5.0)), torch.Size())
    assert mean.constant.item() == pytest.approx(2.0)
    constraint = mean.raw_constant_constraint
    assert (constraint.lower_bound, constraint.upper_bound) == (-1, 5)


def test_kernel_starts_at_its_hyperpriors_means():
    kernel = hyperprior_kernel(specified(), 4, None, BATCH)
    lengthscale = kernel.base_kernel.lengthscale
    torch.testing.assert_close(lengthscale, torch.full((3, 1, 4), 1 / 3).double())
    torch.testing.assert_close(kernel.outputscale, torch.full((3,), 0.5).double())
    assert isinstance(kernel.base_kernel.lengthscale_prior, LogDensityGammaPrior)
    assert isinstance(kernel.outputscale_prior, LogDensityGammaPrior)
    assert kernel.base_kernel.nu == 2.5


def test_each_lengthscale_starts_where_its_context_says():
    hyperprior, context = fit("mphd"), default_context(3, [1])
    kernel = hyperprior_kernel(hyperprior, 3, context, torch.Size())
    expected = hyperprior.lengthscale_prior(3, context).mean
    assert len(expected.unique()) == 2
    torch.testing.assert_close(kernel.base_kernel.lengthscale[0], expected)


@pytest.mark.parametrize("bounded", [True, False])
def test_bounds_are_for_fits(bounded):
    kernel = hyperprior_kernel(specified(), 2, None, torch.Size(), bounded)
    constraints = [constraint for _, constraint in kernel.named_constraints()]
    assert len(constraints) == 2
    for constraint in constraints:
        assert (type(constraint) is Positive) == (not bounded)


def test_density_without_a_bound_at_zero_has_a_lower_one():
    corner = specified(lengthscale=GammaPrior(0.5, 1.0))
    kernel = hyperprior_kernel(corner, 2, None, torch.Size())
    lower = kernel.base_kernel.raw_lengthscale_constraint.lower_bound
    draws = GammaPrior(0.5, 1.0).sample(torch.Size([20_000]))
    assert float((draws < lower).double().mean()) == pytest.approx(0.01, abs=3e-3)


def test_empirical_hyperpriors_are_not_registered(empirical):
    kernel = hyperprior_kernel(empirical, 2, None, torch.Size())
    mean = hyperprior_mean(empirical, torch.Size())
    assert not [*kernel.named_priors(), *mean.named_priors()]
    assert hyperprior_noise(empirical).prior() is None
    torch.testing.assert_close(mean.constant, empirical.estimates.constant.mean())


def test_noise():
    noise = hyperprior_noise(specified())
    assert noise.start == pytest.approx(5.05e-3)
    assert (noise.lower, noise.upper) == pytest.approx((1e-4, 1e-2))
    assert isinstance(noise.prior(), UniformPrior)


def test_noise_is_no_less_than_can_be_factorized():
    """However little noise a hyperprior expects, relative to the signal."""
    noise = hyperprior_noise(specified(noise=GammaPrior(2.0, 1e9)))
    assert isinstance(noise.prior(), LogDensityGammaPrior)
    assert noise.lower == noise.start == pytest.approx(1e-6 * 0.5)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_dtype_is_the_hyperpriors(dtype):
    hyperprior = specified().to(dtype)
    parts = (
        hyperprior_mean(hyperprior, BATCH),
        hyperprior_kernel(hyperprior, 2, None, BATCH),
    )
    assert {parameter.dtype for part in parts for parameter in part.parameters()} == {dtype}
