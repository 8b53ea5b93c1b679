r"""Stationary kernels as functions of the squared scaled distance.

The source GPs are evaluated and fitted as one padded batch, where GPyTorch's lazy kernels cost more
than the arithmetic. What that batch needs of a kernel is two lines: its value and its logarithm's
derivative with respect to ``r2``, the squared distance between inputs that were divided by their
lengthscales.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

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
