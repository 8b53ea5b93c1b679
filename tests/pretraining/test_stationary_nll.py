"""The closed form against kernel and likelihood one after the other."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.kernels.gaussian import nll, stationary_nll
from botorch_transfer.kernels.stationary import Stationary

KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "unscaled": lambda: MaternKernel(1.5),
    "matern12": lambda: ScaleKernel(MaternKernel(0.5, ard_num_dims=3)),
    "matern32": lambda: ScaleKernel(MaternKernel(1.5)),
    "matern52": lambda: ScaleKernel(MaternKernel(2.5, ard_num_dims=3)),
}
MASK = torch.tensor([[True] * 5, [True, True, False, False, False]])


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(2, 5, 3, dtype=torch.double, generator=generator)
    X[0, 3] = X[0, 4]  # points that coincide
    mean, Y = torch.randn(2, 2, 5, dtype=torch.double, generator=generator)
    return X.requires_grad_(), mean.requires_grad_(), Y


@pytest.fixture(params=KERNELS)
def kernel(request):
    kernel = KERNELS[request.param]().double()
    generator = torch.Generator().manual_seed(1)
    for parameter in kernel.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data.add_(0.3 * noise)
    return kernel


@pytest.mark.parametrize("noise_shape", [(1,), (2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients(kernel, data, masked, noise_shape):
    X, mean, Y = data
    mask = MASK if masked else None
    noise = torch.linspace(0.1, 0.4, 10).double().reshape(2, 5)[: noise_shape[0], : noise_shape[-1]]
    noise = noise[0].clone() if noise_shape == (1,) else noise.clone()
    noise.requires_grad_()
    stationary = Stationary.of(kernel)
    assert stationary is not None
    values = (
        stationary_nll(mean, X, stationary, noise, Y, mask),
        nll(mean, kernel(X).to_dense(), Y, mask, noise),
    )
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    weight = torch.tensor([2.0, -0.7], dtype=torch.double)
    inputs = [mean, X, noise, *kernel.parameters()]
    gradients = (torch.autograd.grad((weight * value).sum(), inputs) for value in values)
    for left, right in zip(*gradients, strict=True):
        # GPyTorch's own Matérn kernels cut short distances off.
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)


def test_padding_is_ignored(data):
    X, mean, Y = data
    kernel = Stationary.of(KERNELS["matern52"]().double())
    noise = torch.tensor([0.1], dtype=torch.double)
    value = stationary_nll(mean, X, kernel, noise, Y, MASK)
    padded = Y.masked_fill(~MASK, 1e3), X.detach().masked_fill(~MASK.unsqueeze(-1), 7.0)
    again = stationary_nll(mean, padded[1], kernel, noise, padded[0], MASK)
    torch.testing.assert_close(again, value)
    alone = stationary_nll(mean[1:, :2], X[1:, :2], kernel, noise, Y[1:, :2])
    torch.testing.assert_close(value[1:], alone)


def test_gradients_are_derivatives(data):
    X, mean, Y = data
    X = X.detach()[:, :3].requires_grad_()
    raw = torch.tensor([0.3, 0.5, 0.2], dtype=torch.double, requires_grad=True)

    def value(mean, X, raw):
        kernel = Stationary("matern52", raw[:1].exp().unsqueeze(0), raw[1].exp())
        return stationary_nll(mean, X, kernel, raw[2:], Y[:, :3])

    assert torch.autograd.gradcheck(value, (mean.detach()[:, :3].requires_grad_(), X, raw))


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_broken_task_is_nan_and_the_others_are_not(data):
    X, mean, Y = data
    noise = torch.tensor([[0.1], [-5.0]], dtype=torch.double)
    kernel = Stationary.of(KERNELS["rbf"]().double())
    values = stationary_nll(mean, X, kernel, noise.expand(2, 5), Y)
    assert values.isnan().tolist() == [False, True]
