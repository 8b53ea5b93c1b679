"""Stationary kernels as functions of the squared scaled distance.

The source GPs are evaluated and fitted as one padded batch, where GPyTorch's lazy kernels cost more
than the arithmetic. What that batch needs of a kernel is two lines: its value and its logarithm's
derivative with respect to ``r2``, the squared distance between inputs that were divided by their
lengthscales.

Covariance matrices of training inputs, with gradients, at the cost of the arithmetic.

GPyTorch's kernels are lazy and general. In a pre-training step, which evaluates one small matrix a
task some thousands of times, that costs more than the matrices do, so the kernels of the presets
have a path of their own. Any other kernel takes GPyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_transfer.kernels.features import FeatureKernel

SQRT3, SQRT5 = math.sqrt(3.0), math.sqrt(5.0)


@dataclass(frozen=True)
class StationaryFunction:
    """A stationary kernel ``s k(r2)`` with its derivative.

    Args:
        value: Maps squared scaled distances, and the logarithm of the signal variance ``s``, to
            covariances, elementwise. The logarithm enters the exponential: a factor would be one
            more pass over a large array.
        log_derivative: Maps squared scaled distances to ``d log k / d r2``, elementwise; a number
            where that is the same everywhere.
        make_kernel: Builds the GPyTorch kernel of the same name from ``ard_num_dims=`` and
            ``batch_shape=``.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    log_derivative: Callable[[Tensor], Tensor | float]
    make_kernel: Callable[..., Kernel]


def _distance(r2: Tensor) -> Tensor:
    # The floor keeps the square root's gradient finite where two points coincide.
    return r2.clamp_min(1e-30).sqrt()


def _rbf(r2: Tensor, log_scale: Tensor) -> Tensor:
    return torch.add(log_scale, r2, alpha=-0.5).exp_()


def _matern52(r2: Tensor, log_scale: Tensor) -> Tensor:
    r = SQRT5 * _distance(r2)
    return (1 + r + r.square() / 3) * (log_scale - r).exp_()


def _matern52_log_derivative(r2: Tensor) -> Tensor:
    r = SQRT5 * _distance(r2)
    return -5 / 6 * (1 + r) / (1 + r + r.square() / 3)


def _matern32(r2: Tensor, log_scale: Tensor) -> Tensor:
    r = SQRT3 * _distance(r2)
    return (1 + r) * (log_scale - r).exp_()


def _matern32_log_derivative(r2: Tensor) -> Tensor:
    return -3 / 2 / (1 + SQRT3 * _distance(r2))


def _matern12(r2: Tensor, log_scale: Tensor) -> Tensor:
    return (log_scale - _distance(r2)).exp_()


def _matern12_log_derivative(r2: Tensor) -> Tensor:
    # Coincident points do not depend on the lengthscale; the pole of 1 / r there is cut out.
    return torch.where(r2 > 1e-20, -0.5 / _distance(r2), 0.0)


def _matern(nu: float) -> Callable[..., Kernel]:
    return lambda **kwargs: MaternKernel(nu=nu, **kwargs)


STATIONARY_FUNCTIONS = {
    "rbf": StationaryFunction(_rbf, lambda r2: -0.5, RBFKernel),
    "matern12": StationaryFunction(_matern12, _matern12_log_derivative, _matern(0.5)),
    "matern32": StationaryFunction(_matern32, _matern32_log_derivative, _matern(1.5)),
    "matern52": StationaryFunction(_matern52, _matern52_log_derivative, _matern(2.5)),
}


def stationary_function(name: str) -> StationaryFunction:
    """Looks up a stationary kernel by name.

    Args:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.

    Returns:
        The kernel's value and its logarithm's derivative as functions of the squared scaled
        distance.

    Raises:
        ValueError: If there is no kernel of that name.

    Example:
        >>> import torch
        >>> stationary_function("rbf").value(torch.zeros(1), torch.tensor(2.0).log())
        tensor([2.])
    """
    try:
        return STATIONARY_FUNCTIONS[name]
    except KeyError:
        names = ", ".join(repr(key) for key in STATIONARY_FUNCTIONS)
        raise ValueError(f"Unknown kernel {name!r}: choose one of {names}.") from None


def squared_distance(x1: Tensor, x2: Tensor) -> Tensor:
    """Computes squared Euclidean distances by one matrix product.

    Args:
        x1: A ``batch_shape x n1 x d`` tensor of inputs, divided by their lengthscales.
        x2: A ``batch_shape x n2 x d`` tensor of inputs, divided by their lengthscales.

    Returns:
        A ``batch_shape x n1 x n2`` tensor of non-negative squared distances, differentiable in both
        inputs. The diagonal is exactly zero where ``x1 is x2``.
    """
    # Distances do not change under a shift, and their rounding error grows with the norms.
    shift = x2.detach().mean(dim=-2, keepdim=True)
    a = x1 - shift
    b = a if x1 is x2 else x2 - shift
    a2 = a.square().sum(dim=-1, keepdim=True)
    b2 = a2 if x1 is x2 else b.square().sum(dim=-1, keepdim=True)
    # The squares go into the product, too: every pass over its large result costs as much.
    left = torch.cat([-2 * a, a2, torch.ones_like(a2)], dim=-1)
    right = torch.cat([b, torch.ones_like(b2), b2], dim=-1)
    r2 = left @ right.mT
    if x1 is x2:
        r2.diagonal(dim1=-2, dim2=-1).zero_()
    return r2.clamp_min_(0.0)


LOG2E = math.log2(math.e)
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
    stationary = Stationary.of(kernel)
    if stationary is not None:
        value: Any = _Covariance.apply(X, stationary.lengthscale, stationary.scale, stationary.name)
        return value
    if _plain(kernel, ScaleKernel):
        return kernel.outputscale[..., None, None] * dense_covariance(kernel.base_kernel, X)
    if _plain(kernel, FeatureKernel):
        return dense_covariance(kernel.base_kernel, kernel.network(X))
    return kernel(X).to_dense()


@dataclass(frozen=True)
class Stationary:
    """What there is to know of a scaled stationary kernel.

    Args:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
        lengthscale: A ``... x 1 x d`` or ``... x 1 x 1`` tensor.
        scale: A tensor: the signal variance, of each member of a batch.
    """

    name: str
    lengthscale: Tensor
    scale: Tensor

    @classmethod
    def of(cls, kernel: Kernel) -> Self | None:
        """Reads GPyTorch's kernel, if it is an RBF or Matérn one of all inputs, scaled or not.

        Args:
            kernel: The kernel.

        Returns:
            Its parts, differentiable in its parameters; ``None`` if it is another one.
        """
        base = kernel.base_kernel if _plain(kernel, ScaleKernel) else kernel
        if _plain(base, RBFKernel):
            name = "rbf"
        elif _plain(base, MaternKernel):
            name = _MATERN[base.nu]
        else:
            return None
        lengthscale = base.lengthscale
        scale = kernel.outputscale if base is not kernel else lengthscale.new_ones(())
        return cls(name, lengthscale, scale)


def _plain(kernel: Kernel, kernel_class: type[Kernel]) -> bool:
    """Whether a kernel is of this very class and reads all inputs."""
    return type(kernel) is kernel_class and kernel.active_dims is None


def value_and_derivative(scaled: Tensor, scale: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Evaluates a stationary kernel between all pairs of inputs, without a graph.

    Args:
        scaled: A ``... x n x d`` tensor of inputs, divided by their lengthscales.
        scale: The signal variance.
        name: The kernel's name.

    Returns:
        The covariance and its derivative with respect to the squared distance, two
        ``... x n x n`` tensors, to be changed at will.
    """
    return _VALUE_AND_DERIVATIVE[name](
        _dense_squared_distance(scaled), scale.log2()[..., None, None]
    )


class _Covariance(torch.autograd.Function):
    """A scaled stationary kernel with its closed-form gradient."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, lengthscale: Tensor, scale: Tensor, name: str) -> Tensor:
        scaled = X / lengthscale
        value, derivative = value_and_derivative(scaled, scale, name)
        ctx.save_for_backward(scaled, lengthscale, scale, value, derivative)
        ctx.shape = X.shape
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scaled, lengthscale, scale, value, derivative = ctx.saved_tensors
        (G,) = grad_outputs
        for_X = for_lengthscale = for_scale = None
        if ctx.needs_input_grad[2]:
            products = torch.linalg.vecdot(G.flatten(-2), value.flatten(-2))
            for_scale = products.sum_to_size(scale.shape) / scale
        # Σ_ij G_ij k(r2_ij) has the gradient 2 Σ_j (H_ij + H_ji) (x_i - x_j), H = G ∘ k'(r2).
        H = G * derivative
        H = (H + H.mT).mul_(2.0)
        for_scaled = (H.sum(dim=-1, keepdim=True) * scaled).sub_(H @ scaled)
        if ctx.needs_input_grad[1]:
            stretch = (for_scaled * scaled).sum_to_size(lengthscale.shape)
            for_lengthscale = stretch.div_(lengthscale).neg_()
        if ctx.needs_input_grad[0]:
            for_X = (for_scaled / lengthscale).sum_to_size(ctx.shape)
        return for_X, for_lengthscale, for_scale, None


# What follows are passes over large matrices: few, and in place, as there is no graph. On a CPU,
# PyTorch has faster programs for 1 / √x and 2ˣ than for √x and eˣ. Factors are floats, because
# integers are converted first.


def _dense_squared_distance(x: Tensor) -> Tensor:
    """As ``squared_distance`` between the inputs themselves; never quite zero."""
    centred = x - x.mean(dim=-2, keepdim=True)
    squares = centred.square().sum(dim=-1, keepdim=True)
    r2 = (centred @ (-2.0 * centred).mT).add_(squares).add_(squares.mT)
    r2.diagonal(dim1=-2, dim2=-1).zero_()
    return r2.clamp_min_(torch.finfo(r2.dtype).tiny)


def _exp_minus(r: Tensor, log2_scale: Tensor) -> Tensor:
    return torch.add(log2_scale, r, alpha=-LOG2E).exp2_()


def _dense_rbf(r2: Tensor, log2_scale: Tensor) -> tuple[Tensor, Tensor]:
    value = _exp_minus(r2.mul_(0.5), log2_scale)
    return value, -0.5 * value


def _dense_matern52(r2: Tensor, log2_scale: Tensor) -> tuple[Tensor, Tensor]:
    r = r2.rsqrt().mul_(r2).mul_(SQRT5)
    decay, linear = _exp_minus(r, log2_scale), r.add_(1.0)
    value = r2.mul_(5 / 3).add_(linear).mul_(decay)
    return value, linear.mul_(decay).mul_(-5 / 6)


def _dense_matern32(r2: Tensor, log2_scale: Tensor) -> tuple[Tensor, Tensor]:
    r = r2.rsqrt().mul_(r2).mul_(SQRT3)
    decay = _exp_minus(r, log2_scale)
    return r.add_(1.0).mul_(decay), decay.mul_(-3 / 2)


def _dense_matern12(r2: Tensor, log2_scale: Tensor) -> tuple[Tensor, Tensor]:
    value = _exp_minus(r2.rsqrt().mul_(r2), log2_scale)
    return value, value * stationary_function("matern12").log_derivative(r2)


_VALUE_AND_DERIVATIVE: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "rbf": _dense_rbf,
    "matern12": _dense_matern12,
    "matern32": _dense_matern32,
    "matern52": _dense_matern52,
}
