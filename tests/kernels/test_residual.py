from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.priors import GammaPrior, LogNormalPrior

from botorch_transfer.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.hyperpriors.spec import residual_kernel
from tests.kernels.tasks import plain_kernel, points


def test_defaults_are_those_of_the_paper() -> None:
    kernel = residual_kernel(3)
    assert type(kernel.base_kernel) is RBFKernel
    torch.testing.assert_close(kernel.outputscale.item(), 0.1, atol=1e-6, rtol=0)
    torch.testing.assert_close(kernel.base_kernel.lengthscale, torch.ones(1, 3))
    lengthscale, outputscale = kernel.base_kernel.lengthscale_prior, kernel.outputscale_prior
    assert isinstance(lengthscale, LogNormalPrior)
    assert (lengthscale.loc, lengthscale.scale) == (0.5, 1.5)
    assert (outputscale.loc, outputscale.scale) == (-2.0, 3.0)
    for constraint in (
        kernel.raw_outputscale_constraint,
        kernel.base_kernel.raw_lengthscale_constraint,
    ):
        assert constraint.lower_bound.item() == pytest.approx(1e-4)
        assert constraint.upper_bound.item() == pytest.approx(1e2)


def test_value() -> None:
    kernel, x = residual_kernel(2).double(), points(4, 2)
    kernel.base_kernel.lengthscale = torch.tensor([0.3, 0.7])
    kernel.outputscale = 2.0
    scaled = x / torch.tensor([0.3, 0.7], dtype=torch.double)
    expected = 2 * plain_kernel("rbf", scaled, scaled)
    torch.testing.assert_close(kernel(x).to_dense(), expected, atol=1e-6, rtol=0)


def test_other_kernel_hyperparameters_and_batch() -> None:
    kernel = residual_kernel(2, torch.Size([3]), SOURCE_HYPERPARAMETERS, "matern32")
    assert isinstance(kernel.base_kernel, MaternKernel)
    assert kernel.base_kernel.nu == 1.5
    assert kernel.base_kernel.lengthscale.shape == (3, 1, 2)
    assert kernel.outputscale.shape == (3,)
    assert isinstance(kernel.outputscale_prior, GammaPrior)


def test_without_priors() -> None:
    kernel = residual_kernel(2, hyperparameters=SOURCE_HYPERPARAMETERS.without_priors())
    assert not list(kernel.named_priors())
