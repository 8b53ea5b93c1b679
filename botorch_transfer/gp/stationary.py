"""RBF and Matérn kernels as functions of the squared distance, with their derivatives.

GPyTorch's kernels are lazy and general. For many small matrices, the overhead of these kernels
takes longer than the arithmetic. Source GPs and pre-training therefore evaluate RBF and Matérn
kernels with the functions of this module. A kernel is ``s k(r²)``, where ``s`` is the signal
variance and ``r`` is the distance between two inputs that are divided by the lengthscales. The
formulas use an intermediate value ``t``:

.. code-block:: text

    kernel                t           k(r²)                    dk/dr²
    rbf                   r²          exp(-t/2)                -1/2 exp(-t/2)
    matern12 (ν = 1/2)    r           exp(-t)                  -1/(2t) exp(-t)
    matern32 (ν = 3/2)    √3 r        (1 + t) exp(-t)          -3/2 exp(-t)
    matern52 (ν = 5/2)    √5 r        (1 + t + t²/3) exp(-t)   -5/6 (1 + t) exp(-t)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor


@dataclass(frozen=True)
class StationaryFunction:
    """Formulas of a stationary kernel and its derivative, as functions of the squared distance.

    The kernel is ``s k(r²)``, with the signal variance ``s`` and the squared distance ``r²``. The
    formula of ``k`` has the factor ``exp(-rate t)``, where ``t`` is an intermediate value. The
    docstring of ``gp.stationary`` has a table of the formulas.

    Args:
        exponent: Function that computes ``t`` from ``r²``.
        value_factor: Function that computes ``s k(r²)`` from ``t`` and ``s exp(-rate t)``.
        derivative_factor: Function that computes ``s dk/dr²`` from ``t`` and ``s exp(-rate t)``.
        make_kernel: Function that builds the GPyTorch kernel from ``ard_num_dims=`` and
            ``batch_shape=``.
        rate: The factor of ``t`` in the exponent.

    Example:
        >>> function = stationary_function("rbf")
        >>> function.value(torch.zeros(1), torch.tensor(2.0).log())
        tensor([2.])
    """

    exponent: Callable[[Tensor], Tensor]
    value_factor: Callable[[Tensor, Tensor], Tensor]
    derivative_factor: Callable[[Tensor, Tensor], Tensor]
    make_kernel: Callable[..., Kernel]
    rate: float = 1.0

    def value(self, r2: Tensor, log_scale: Tensor) -> Tensor:
        """Evaluates the kernel at squared distances.

        Args:
            r2: A tensor of squared distances.
            log_scale: The logarithm of the signal variance, a tensor that broadcasts to ``r2``. The
                logarithm is added to the exponent, which is faster than multiplying all covariances
                by the variance.

        Returns:
            A tensor of covariances, differentiable with respect to both arguments.
        """
        t = self.exponent(r2)
        return self.value_factor(t, torch.sub(log_scale, t, alpha=self.rate).exp_())

    def value_and_derivative(self, r2: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the kernel and its derivative with respect to the squared distance.

        Args:
            r2: A tensor of squared distances.
            log_scale: The logarithm of the signal variance, a tensor that broadcasts to ``r2``.

        Returns:
            The covariances, and their derivatives with respect to ``r2``. At ``r2 = 0``, the
            derivative of ``matern12`` is infinite. The result contains zero instead, because the
            covariance of equal inputs does not depend on the lengthscale.
        """
        t = self.exponent(r2)
        decay = torch.sub(log_scale, t, alpha=self.rate).exp_()
        derivative = self.derivative_factor(t, decay)
        return self.value_factor(t, decay), derivative


def _matern(nu: float, value: Callable[..., Tensor], derivative: Callable[..., Tensor]) -> Any:
    factor = math.sqrt(2 * nu)
    return StationaryFunction(
        # The floor keeps the gradient of the square root finite at equal inputs.
        exponent=lambda r2: factor * r2.clamp_min(1e-30).sqrt(),
        value_factor=value,
        derivative_factor=derivative,
        make_kernel=lambda **kwargs: MaternKernel(nu=nu, **kwargs),
    )


STATIONARY_FUNCTIONS: dict[str, StationaryFunction] = {
    "rbf": StationaryFunction(
        exponent=lambda r2: r2,
        rate=0.5,
        value_factor=lambda t, decay: decay,
        derivative_factor=lambda t, decay: -0.5 * decay,
        make_kernel=RBFKernel,
    ),
    "matern12": _matern(
        0.5,
        lambda t, decay: decay,
        lambda t, decay: torch.where(t > 1e-10, -0.5 * decay / t, 0.0),
    ),
    "matern32": _matern(1.5, lambda t, decay: (1 + t) * decay, lambda t, decay: -1.5 * decay),
    "matern52": _matern(
        2.5,
        lambda t, decay: torch.addcmul(1 + t, t, t, value=1 / 3) * decay,
        lambda t, decay: torch.add(-5 / 6, t, alpha=-5 / 6) * decay,
    ),
}


def stationary_function(name: str) -> StationaryFunction:
    """Looks up a stationary kernel by name.

    Args:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.

    Returns:
        The kernel as a function of the squared distance.

    Raises:
        ValueError: If no kernel has this name.

    Example:
        >>> stationary_function("matern52").make_kernel(ard_num_dims=3).nu
        2.5
    """
    try:
        return STATIONARY_FUNCTIONS[name]
    except KeyError:
        names = ", ".join(repr(key) for key in STATIONARY_FUNCTIONS)
        raise ValueError(f"Unknown kernel {name!r}: choose one of {names}.") from None


def squared_distance(x1: Tensor, x2: Tensor) -> Tensor:
    """Computes the squared Euclidean distances between two sets of inputs by one matrix product.

    Args:
        x1: A ``batch_shape x n1 x d`` tensor of inputs, divided by their lengthscales.
        x2: A ``batch_shape x n2 x d`` tensor of inputs, divided by their lengthscales.

    Returns:
        A ``batch_shape x n1 x n2`` tensor of non-negative squared distances, differentiable with
        respect to both inputs. The diagonal is exactly zero if ``x1 is x2``.
    """
    return FixedPoints(x2).squared_distance(x1)


class FixedPoints:
    """Fixed inputs, with precomputed terms of the squared distances to other inputs.

    Args:
        x2: A ``batch_shape x n2 x d`` tensor of the fixed inputs, divided by their lengthscales.
    """

    def __init__(self, x2: Tensor) -> None:
        self.points = x2
        # Centred inputs have the same distances, but smaller norms and rounding errors.
        self._shift = x2.detach().mean(dim=-2, keepdim=True)
        self._centred = self._shifted(x2)
        b, b2 = self._centred
        # The matrix product also adds the squared norms. This saves a pass over all distances.
        self._right = torch.cat([-2 * b, torch.ones_like(b2), b2], dim=-1).mT

    def _shifted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns inputs minus the fixed inputs' mean, and the squared norms of the result."""
        shifted = x - self._shift
        return shifted, shifted.square().sum(dim=-1, keepdim=True)

    def squared_distance(self, x1: Tensor) -> Tensor:
        """Computes the squared distances between inputs and the fixed inputs.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs, divided by their lengthscales.

        Returns:
            A ``batch_shape x n1 x n2`` tensor.
        """
        same = x1 is self.points
        a, a2 = self._centred if same else self._shifted(x1)
        left = torch.cat([a, a2, torch.ones_like(a2)], dim=-1)
        r2 = (left @ self._right).clamp_min_(0.0)
        if same:
            r2.diagonal(dim1=-2, dim2=-1).zero_()
        return r2

    @cached_property
    def with_ones(self) -> Tensor:
        """The fixed inputs and a column of ones, a ``batch_shape x n2 x (d + 1)`` tensor."""
        return _with_ones(self.points)


_MATERN_NAMES = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


@dataclass(frozen=True)
class Stationary:
    """Name and hyperparameters of an RBF or Matérn kernel with a signal variance.

    Args:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
        lengthscale: A ``... x 1 x d`` tensor; ``... x 1 x 1`` if all inputs share a lengthscale.
        scale: A ``...`` tensor of signal variances.
    """

    name: str
    lengthscale: Tensor
    scale: Tensor

    @classmethod
    def of(cls, kernel: Kernel) -> Self | None:
        """Reads the name and the hyperparameters of a GPyTorch kernel.

        Args:
            kernel: An ``RBFKernel`` or a ``MaternKernel``, with or without a ``ScaleKernel``. Other
                kernels are not supported.

        Returns:
            The name and the hyperparameters, with their autograd graph. ``None`` if the kernel is
            not supported or has ``active_dims``.
        """
        base = kernel.base_kernel if _reads_all_inputs(kernel, ScaleKernel) else kernel
        if _reads_all_inputs(base, RBFKernel):
            name = "rbf"
        elif _reads_all_inputs(base, MaternKernel):
            name = _MATERN_NAMES[base.nu]
        else:
            return None
        lengthscale = base.lengthscale
        scale = kernel.outputscale if base is not kernel else lengthscale.new_ones(())
        return cls(name, lengthscale, scale)

    def between(self, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
        """Evaluates the kernel between two sets of inputs.

        Args:
            x1: A ``... x n1 x d`` tensor of inputs.
            x2: A ``... x n2 x d`` tensor of inputs. If ``x2 is x1``, the distance of each input to
                itself is exactly zero.
            diag: Whether to return only the diagonal, ``k(x1_i, x2_i)``.

        Returns:
            A ``... x n1 x n2`` tensor, or ``... x n`` if ``diag``.
        """
        scaled = x1 / self.lengthscale
        other = scaled if x1 is x2 else x2 / self.lengthscale
        log_scale = self.scale.log().unsqueeze(-1)
        if diag:
            r2 = (scaled - other).square().sum(dim=-1)
        else:
            r2, log_scale = squared_distance(scaled, other), log_scale.unsqueeze(-1)
        return stationary_function(self.name).value(r2, log_scale)

    def make_kernel(self) -> ScaleKernel:
        """Builds a GPyTorch kernel with these hyperparameters; no parameter requires a gradient."""
        shape, dim = self.scale.shape, self.lengthscale.shape[-1]
        make = stationary_function(self.name).make_kernel
        kernel = ScaleKernel(make(ard_num_dims=dim, batch_shape=shape), batch_shape=shape)
        kernel = kernel.to(self.lengthscale)
        kernel.base_kernel.lengthscale, kernel.outputscale = self.lengthscale, self.scale
        return kernel.requires_grad_(False)


def _reads_all_inputs(kernel: Kernel, kernel_class: type[Kernel]) -> bool:
    """Returns whether a kernel has exactly the class ``kernel_class``, and no ``active_dims``."""
    return type(kernel) is kernel_class and kernel.active_dims is None


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def gradient_in_inputs(H: Tensor, x: Tensor, others: FixedPoints | None = None) -> Tensor:
    """Computes ``Σ_j H_ij (x_i - x'_j)`` by one matrix product.

    The gradients of stationary kernels with respect to the inputs ``x`` have this form.

    Args:
        H: A ``... x n x n'`` tensor of coefficients.
        x: A ``... x n x d`` tensor of inputs.
        others: The ``n'`` inputs ``x'``; by default, ``x'`` is ``x``.

    Returns:
        A ``... x n x d`` tensor.
    """
    products = H @ (_with_ones(x) if others is None else others.with_ones)
    return (products[..., -1:] * x).sub_(products[..., :-1])
