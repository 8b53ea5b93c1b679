"""Covariance matrices of training inputs, with gradients, at the cost of the arithmetic.

GPyTorch's kernels are lazy and general. In a pre-training step, which evaluates one small matrix a
task some thousands of times, that costs more than the matrices do, so the kernels of the presets
have a path of their own. Any other kernel takes GPyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_transfer.kernels.features import FeatureKernel
from botorch_transfer.kernels.stationary import stationary_function

_MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


def dense_covariance(kernel: Kernel, X: Tensor) -> Tensor:
    """Evaluates a kernel between all pairs of inputs.

    Args:
        kernel: The kernel.
        X: A ``... x n x d`` tensor of inputs.

    Returns:
        A ``... x n x n`` tensor, once differentiable in the kernel's parameters and the inputs.

    Example:
        >>> dense_covariance(RBFKernel(), torch.zeros(2, 3))
        tensor([[1., 1.],
                [1., 1.]], grad_fn=<...>)
    """
    name = _stationary_name(kernel)
    if name is not None:
        return _scaled_correlation(X / kernel.lengthscale, X.new_ones(()), name)
    if _plain(kernel, ScaleKernel):
        name = _stationary_name(kernel.base_kernel)
        if name is not None:
            scaled = X / kernel.base_kernel.lengthscale
            return _scaled_correlation(scaled, kernel.outputscale, name)
        outputscale = kernel.outputscale[..., None, None]
        return outputscale * dense_covariance(kernel.base_kernel, X)
    if _plain(kernel, FeatureKernel):
        return dense_covariance(kernel.base_kernel, kernel.network(X))
    return kernel(X).to_dense()


def _plain(kernel: Kernel, kernel_class: type[Kernel]) -> bool:
    """Whether a kernel is of this very class and reads all inputs."""
    return type(kernel) is kernel_class and kernel.active_dims is None


def _stationary_name(kernel: Kernel) -> str | None:
    if _plain(kernel, RBFKernel):
        return "rbf"
    return _MATERN[kernel.nu] if _plain(kernel, MaternKernel) else None


def _scaled_correlation(scaled: Tensor, scale: Tensor, name: str) -> Tensor:
    value: Any = _ScaledCorrelation.apply(scaled, scale, name)
    return value


class _ScaledCorrelation(torch.autograd.Function):
    """A stationary kernel of scaled inputs, with its closed-form gradient."""

    @staticmethod
    def forward(ctx: Any, scaled: Tensor, scale: Tensor, name: str) -> Tensor:
        value, derivative = _VALUE_AND_DERIVATIVE[name](_squared_distance(scaled))
        s = scale[..., None, None]
        value.mul_(s)
        ctx.save_for_backward(scaled, scale, value, derivative.mul_(s))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scaled, scale, value, derivative = ctx.saved_tensors
        (G,) = grad_outputs
        scale_gradient = None
        if ctx.needs_input_grad[1]:
            products = torch.linalg.vecdot(G.flatten(-2), value.flatten(-2))
            scale_gradient = products.sum_to_size(scale.shape) / scale
        # Σ_ij G_ij k(r2_ij) has the gradient 2 Σ_j (H_ij + H_ji) (x_i - x_j), H = G ∘ k'(r2).
        H = G * derivative
        H = (H + H.mT).mul_(2)
        return (H.sum(dim=-1, keepdim=True) * scaled).sub_(H @ scaled), scale_gradient, None


def _squared_distance(x: Tensor) -> Tensor:
    """As ``squared_distance`` between the inputs themselves, in place."""
    centred = x - x.mean(dim=-2, keepdim=True)
    squares = centred.square().sum(dim=-1)
    r2 = (centred @ centred.mT).mul_(-2).add_(squares.unsqueeze(-1)).add_(squares.unsqueeze(-2))
    r2.diagonal(dim1=-2, dim2=-1).zero_()
    return r2.clamp_min_(0.0)


# Without a graph, most of the work can be done in place, which saves half of the time.


def _rbf(r2: Tensor) -> tuple[Tensor, Tensor]:
    value = r2.mul_(-0.5).exp_()
    return value, -0.5 * value


def _matern52(r2: Tensor) -> tuple[Tensor, Tensor]:
    r = r2.mul_(5.0).sqrt_()
    decay, linear = torch.exp(-r), r + 1
    value = r.square_().div_(3).add_(linear).mul_(decay)
    return value, linear.mul_(decay).mul_(-5 / 6)


def _matern32(r2: Tensor) -> tuple[Tensor, Tensor]:
    r = r2.mul_(3.0).sqrt_()
    decay = torch.exp(-r)
    return r.add_(1).mul_(decay), decay.mul(-3 / 2)


def _matern12(r2: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.exp(-r2.sqrt())
    return value, value * stationary_function("matern12").log_derivative(r2)


_VALUE_AND_DERIVATIVE: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}
