"""Closed forms against GPyTorch's kernels, distributions and automatic differentiation."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.gp.likelihood import (
    cholesky_or_nan,
    log_density,
    nll,
    stationary_nll_and_gradient,
)
from botorch_transfer.gp.stationary import Stationary, dense_covariance
from tests.gp.single_task import perturbed


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_each_matrix_of_a_batch_by_itself():
    sound = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.double)
    matrices = torch.stack([sound, -sound, torch.ones_like(sound), sound * torch.nan])
    roots = cholesky_or_nan(torch.stack([matrices, matrices.flip(0)]))
    for batch, order in zip(roots, (range(4), reversed(range(4))), strict=True):
        found = dict(zip(order, batch, strict=True))
        torch.testing.assert_close(found[0], torch.linalg.cholesky(sound))
        assert found[1].isnan().all()
        torch.testing.assert_close(found[2] @ found[2].T, matrices[2], atol=1e-5, rtol=0)
        assert found[3].isnan().all()


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
    return perturbed(KERNELS[request.param]())


@pytest.mark.parametrize("noise_shape", [(1,), (2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients(kernel, data, masked, noise_shape):
    X, mean, Y = data
    mask = MASK if masked else None
    noise = torch.linspace(0.1, 0.4, 10).double().reshape(2, 5)[: noise_shape[0], : noise_shape[-1]]
    noise = noise[0].clone() if noise_shape == (1,) else noise.clone()
    noise.requires_grad_()
    dense = nll(mean, dense_covariance(kernel, X), Y, mask, noise)
    values = (dense, nll(mean, kernel(X).to_dense(), Y, mask, noise))
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
    value = nll(mean, kernel.between(X, X), Y, MASK, noise)
    padded = Y.masked_fill(~MASK, 1e3), X.detach().masked_fill(~MASK.unsqueeze(-1), 7.0)
    again = nll(mean, kernel.between(padded[1], padded[1]), padded[0], MASK, noise)
    torch.testing.assert_close(again, value)
    x = X[1:, :2]
    alone = nll(mean[1:, :2], kernel.between(x, x), Y[1:, :2], noise=noise)
    torch.testing.assert_close(value[1:], alone)


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_broken_task_is_nan_and_the_others_are_not(data):
    X, mean, Y = data
    noise = torch.tensor([[0.1], [-5.0]], dtype=torch.double)
    kernel = Stationary.of(KERNELS["rbf"]().double())
    values = nll(mean, kernel.between(X, X), Y, noise=noise.expand(2, 5))
    assert values.isnan().tolist() == [False, True]


def test_log_density():
    root = torch.rand(3, 4, 4, dtype=torch.double).tril() + torch.eye(4).double()
    residual = torch.randn(3, 4, dtype=torch.double)
    whitened = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
    normal = torch.distributions.MultivariateNormal(torch.zeros(4).double(), scale_tril=root)
    torch.testing.assert_close(log_density(root, whitened), normal.log_prob(residual))


@pytest.mark.parametrize("max_elements", [1, 2**17])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("further", [False, True])
def test_gradient_without_a_graph(kernel, data, masked, further, max_elements):
    X, mean, Y = data
    factor = torch.rand(2, 5, 5, dtype=torch.double)
    C = (factor @ factor.mT if further else torch.zeros_like(factor)).requires_grad_()
    noise = torch.linspace(0.1, 0.4, 10).double().reshape(2, 5).requires_grad_()
    stationary, mask = Stationary.of(kernel), MASK if masked else None
    lengthscale = stationary.lengthscale.detach().expand(2, 1, 3).clone().requires_grad_()
    scale = stationary.scale.detach().expand(2).clone().requires_grad_()
    inputs = [mean, lengthscale, scale, noise, C]

    base = getattr(kernel, "base_kernel", kernel)
    base.lengthscale = 1.0
    K = base(X.detach() / lengthscale).to_dense() * scale[:, None, None]
    expected = nll(mean, K + C, Y, mask, noise)
    in_mean, in_lengthscale, *others = torch.autograd.grad(expected.sum(), inputs)
    in_scale, in_noise, in_C = others

    value, gradient = stationary_nll_and_gradient(
        (Y - mean).detach(),
        X.detach(),
        Stationary(stationary.name, lengthscale.detach(), scale.detach()),
        noise.detach(),
        mask,
        C.detach() if further else None,
        max_elements,
    )
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-10)
    for ours, theirs in (
        (gradient.mean, in_mean),
        (gradient.constant, in_mean.sum(-1, keepdim=True)),
        (gradient.lengthscale, in_lengthscale.squeeze(-2)),
        (gradient.outputscale, in_scale.unsqueeze(-1)),
        (gradient.noise, in_noise.sum(-1, keepdim=True)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    if further:
        inside = in_C != 0
        torch.testing.assert_close(gradient.covariance[inside], in_C[inside])
    else:
        assert gradient.covariance.numel() == 0


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_jitter_does_not_count_as_signal():
    """With jitter, the gradient is that of the matrix that was factorized."""
    X, Y = torch.full((1, 4, 1), 0.5).double(), torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double()
    scale = torch.ones(1, dtype=torch.double)

    def evaluate(scale, noise):
        kernel = Stationary("rbf", torch.ones(1, 1, 1).double(), scale)
        return stationary_nll_and_gradient(Y, X, kernel, noise.expand(1, 4))

    _, gradient = evaluate(scale, torch.tensor(0.0).double())
    _, expected = evaluate(scale, torch.tensor(1e-8).double())  # psd_safe_cholesky's first jitter
    torch.testing.assert_close(gradient.outputscale, expected.outputscale, rtol=1e-4, atol=1e-4)
