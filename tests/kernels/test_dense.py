"""The fast path of covariance matrices against GPyTorch's own."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)

from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel, FeatureNetwork
from botorch_transfer.kernels.stationary import dense_covariance

KERNELS = {
    "rbf": lambda: RBFKernel(ard_num_dims=3),
    "matern12": lambda: MaternKernel(0.5, ard_num_dims=3),
    "matern32": lambda: MaternKernel(1.5, ard_num_dims=3),
    "matern52": lambda: ScaleKernel(MaternKernel(2.5, ard_num_dims=3)),
    "deep": lambda: FeatureKernel(
        ScaleKernel(MaternKernel(2.5, ard_num_dims=4)), FeatureNetwork(3, hidden=(5, 4))
    ),
    "linear": lambda: FeatureKernel(BiasedLinearKernel(), FeatureNetwork(3, hidden=(4,))),
    "some columns": lambda: ScaleKernel(RBFKernel(active_dims=(0, 2))),
    "scaled columns": lambda: ScaleKernel(RBFKernel(ard_num_dims=2), active_dims=(0, 2)),
    "periodic": lambda: ScaleKernel(PeriodicKernel()),
    "sum": lambda: AdditiveKernel(RBFKernel(), LinearKernel()),
}


@pytest.fixture(params=KERNELS)
def kernel(request):
    kernel = KERNELS[request.param]().double()
    generator = torch.Generator().manual_seed(0)
    for parameter in kernel.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data.add_(0.3 * noise)
    return kernel


@pytest.fixture
def X():
    X = torch.rand(2, 6, 3, dtype=torch.double)
    X[0, 3] = X[0, 4]  # points that coincide
    return X


def gradients(kernel, X, value):
    # Not symmetric: a gradient that takes half of the matrix for granted would show.
    weight = torch.linspace(-1, 2, value.numel(), dtype=torch.double).reshape(value.shape)
    return torch.autograd.grad((weight * value).sum(), [*kernel.parameters(), X])


def test_values_and_gradients(kernel, X):
    X.requires_grad_()
    expected = kernel(X).to_dense()
    value = dense_covariance(kernel, X)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-9)
    pairs = zip(gradients(kernel, X, value), gradients(kernel, X, expected), strict=True)
    for left, right in pairs:
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["rbf", "matern32", "matern52", "deep"])
def test_gradients_are_derivatives(name):
    kernel = KERNELS[name]().double()
    X = torch.rand(4, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda X: dense_covariance(kernel, X), X, atol=1e-6)
