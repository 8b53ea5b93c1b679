r"""Unit-variance stationary kernels as functions of the squared scaled distance.

The source GPs are evaluated and fitted as one padded batch, where GPyTorch's lazy kernels cost more
than the arithmetic. What that batch needs of a kernel is two lines: its value and its derivative
with respect to ``r2``, the squared distance between inputs that were divided by their lengthscales.
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
    """A unit-variance stationary kernel ``k(r2)`` with its derivative.

    Args:
        value: Maps squared scaled distances to correlations, elementwise.
        derivative: Maps squared scaled distances and the values there to ``dk / d r2``,
            elementwise.
        make_kernel: Builds the GPyTorch kernel of the same name from ``ard_num_dims=`` and
            ``batch_shape=``.
    """

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor], Tensor]
    make_kernel: Callable[..., Kernel]


def _distance(r2: Tensor) -> Tensor:
    # The floor keeps the square root's gradient finite where two points coincide.
    return r2.clamp_min(1e-30).sqrt()


def _matern52(r2: Tensor) -> Tensor:
    r = SQRT5 * _distance(r2)
    return (1 + r + r.square() / 3) * torch.exp(-r)


def _matern52_derivative(r2: Tensor, value: Tensor) -> Tensor:
    r = SQRT5 * _distance(r2)
    return -5 / 6 * (1 + r) * torch.exp(-r)


def _matern32(r2: Tensor) -> Tensor:
    r = SQRT3 * _distance(r2)
    return (1 + r) * torch.exp(-r)


def _matern32_derivative(r2: Tensor, value: Tensor) -> Tensor:
    return -3 / 2 * torch.exp(-SQRT3 * _distance(r2))


def _matern12(r2: Tensor) -> Tensor:
    return torch.exp(-_distance(r2))


def _matern12_derivative(r2: Tensor, value: Tensor) -> Tensor:
    # Coincident points do not depend on the lengthscale; the pole of 1 / r there is cut out.
    return torch.where(r2 > 1e-20, -value / (2 * _distance(r2)), 0.0)


def _matern(nu: float) -> Callable[..., Kernel]:
    return lambda **kwargs: MaternKernel(nu=nu, **kwargs)


STATIONARY_FUNCTIONS = {
    "rbf": StationaryFunction(
        value=lambda r2: torch.exp(-0.5 * r2),
        derivative=lambda r2, value: -0.5 * value,
        make_kernel=RBFKernel,
    ),
    "matern12": StationaryFunction(_matern12, _matern12_derivative, _matern(0.5)),
    "matern32": StationaryFunction(_matern32, _matern32_derivative, _matern(1.5)),
    "matern52": StationaryFunction(_matern52, _matern52_derivative, _matern(2.5)),
}


def stationary_function(name: str) -> StationaryFunction:
    """Looks up a stationary kernel by name.

    Args:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.

    Returns:
        The kernel's value and derivative as functions of the squared scaled distance.

    Raises:
        ValueError: If there is no kernel of that name.

    Example:
        >>> import torch
        >>> stationary_function("rbf").value(torch.zeros(1))
        tensor([1.])
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
    r2 = a2 + b2.mT - 2 * (a @ b.mT)
    if x1 is x2:
        eye = torch.eye(x1.shape[-2], dtype=torch.bool, device=x1.device)
        r2 = r2.masked_fill(eye, 0.0)
    return r2.clamp_min(0.0)
