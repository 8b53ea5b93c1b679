r"""Priors of GPs, written as sums of stationary kernels at fixed points.

The *expansion* of a prior writes its mean ``m`` and its covariance ``k`` as constants plus sums
over stationary kernels ``k_i``. Term ``i`` depends on an input ``x`` only through the row vector
``φ_i(x)``, the values of ``k_i`` between ``x`` and fixed points ``X_i``:

.. code-block:: text

    φ_i(x) = k_i(x, X_i)          w_i(x) = φ_i(x) R_iᵀ
    m(x)     = m₀ + Σ_i w_i(x) a_i
    k(x, x)  = v₀ + Σ_i w_i(x) l_i - w_i(x) S_i w_i(x)ᵀ
    k(x, T)  = c₀ + Σ_i w_i(x) C_i
    k(x, x') = v₀ + Σ_i (w_i(x) + w_i(x')) l_i / 2
                  + q_i (k_i(x, x') - k_i(x, x)) - w_i(x) S_i w_i(x')ᵀ

``T`` are *fixed inputs*: the inputs of the target's data, optionally followed by other inputs.
``a_i``, ``l_i``, ``C_i``, ``S_i`` and ``q_i`` are coefficients, see :class:`Part`. The factor
``R_i`` of an inverse covariance matrix whitens the kernel values: products with the inverse
covariance matrix itself would have a million times larger rounding errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import gpytorch
import torch
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.means import ConstantMean, Mean
from linear_operator import to_dense
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.conditioned import ConditionedBatch
from botorch_transfer.gp.stationary import (
    FixedPoints,
    Stationary,
    gradient_in_inputs,
    stationary_function,
)

if TYPE_CHECKING:
    from botorch.sampling.pathwise.paths import SamplePath

#: Maximum number of elements of a :class:`Part`. A prior that needs more elements is not expanded.
MAX_NUMBERS = 2**26


@dataclass(frozen=True)
class Part:
    """Terms of an :class:`Expansion` for a batch of ``B`` stationary kernels.

    The terms depend on an input only through kernel values between the input and fixed points. The
    docstring of ``gp.expansion`` has the formulas. There, the index ``i`` counts the kernels.

    Args:
        kernel: The ``B`` stationary kernels ``k_i``, with ``B x 1 x d`` lengthscales.
        points: A ``B x N x d`` tensor: the fixed points ``X_i`` of each kernel.
        root: A ``B x r x n`` tensor: the matrix ``R_i`` of each kernel. It whitens the kernel
            values at the first ``n`` points. Values at the remaining points are not whitened.
        columns: A ``B x (r + N - n) x (2 + T)`` tensor of coefficients. The first ``r`` rows
            are for the whitened kernel values, and the other rows are for the remaining kernel
            values. The columns are ``a_i`` for the mean, ``l_i`` for the variance, and ``C_i`` for
            the covariances with the ``T`` fixed inputs.
        squares: A ``B x r`` tensor: the first ``r`` diagonal elements of ``S_i``, which multiply
            the squares of the whitened kernel values. All other elements of ``S_i`` are zero.
        factor: A ``B`` tensor: the factor ``q_i`` of each kernel in the covariance.
    """

    kernel: Stationary
    points: Tensor
    root: Tensor
    columns: Tensor
    squares: Tensor
    factor: Tensor

    @classmethod
    def of_kernel(cls, kernel: Stationary, T: Tensor, reference: Tensor | None = None) -> Part:
        """Builds the terms for a stationary kernel that is a summand of the prior kernel.

        Args:
            kernel: One stationary kernel.
            T: The fixed inputs, a ``T x d`` tensor.
            reference: An ``R x d`` tensor of additional fixed points. The coefficients of these
                points are zero until the caller sets them.

        Returns:
            A :class:`Part` with one kernel and ``T + R`` fixed points.
        """
        points = T if reference is None else torch.cat([T, reference])
        columns = pad(torch.eye(len(points), len(T)).to(points), (2, 0)).unsqueeze(0)
        lengthscale, scale = kernel.lengthscale.double(), kernel.scale.double()
        kernel = Stationary(kernel.name, lengthscale.reshape(1, 1, -1), scale.reshape(1))
        root, squares = columns.new_zeros(1, 0, 0), columns.new_zeros(1, 0)
        return cls(kernel, points.unsqueeze(0), root, columns, squares, columns.new_ones(1))

    @classmethod
    def of_sources(
        cls, gps: ConditionedBatch, weights: Tensor, T: Tensor, squares: Tensor | None = None
    ) -> Part:
        """Builds the terms for a weighted sum of source GPs in the prior.

        Args:
            gps: The source GPs, conditioned on their data. Each GP has one kernel.
            weights: A ``G`` tensor of the weights, or of the expected values of random weights.
            T: A ``T x d`` tensor of fixed inputs that all kernels share.
            squares: A ``G`` tensor of the expected squares of random weights. By default,
                ``weights`` squared.

        Returns:
            A :class:`Part` with ``G`` kernels. The fixed points of each kernel are the points of
            its GP, followed by the rows of ``T``.
        """
        squares = weights.square() if squares is None else squares
        own, number = gps.points.expand(len(weights), *gps.points.shape[-2:]), len(T)
        root = torch.cat([gps.inverse_root, gps.alpha.unsqueeze(-2)], dim=-2)
        # The last row of the root gives the posterior mean of the GP. For a random weight, the
        # weight's variance times the squared posterior mean is added to the variance of the sum.
        of_rows = squares.unsqueeze(-1).repeat(1, root.shape[-2])
        of_rows[:, -1] = weights.square() - squares
        at_fixed = root @ gps.flat_cross(T).mT
        of_points = squares[:, None, None] * torch.eye(number).to(T)
        cross = torch.cat([-of_rows.unsqueeze(-1) * at_fixed, of_points], dim=-2)
        columns = pad(cross, (2, 0))
        columns[:, root.shape[-2] - 1, 0] = weights
        points = torch.cat([own, T.expand(len(weights), *T.shape)], dim=-2)
        return cls(gps.stationary, points, root, columns, of_rows, squares)

    def mapped(self, matrix: Tensor) -> Part:
        """Returns a new part, whose values are the values of this part times ``matrix``.

        The values of a part are the row vector (mean, variance, covariances).
        """
        square = matrix[1, 1]
        squares, factor = square * self.squares, square * self.factor
        return replace(self, columns=self.columns @ matrix, squares=squares, factor=factor)

    @cached_property
    def fixed(self) -> FixedPoints:
        """The fixed points, divided by the lengthscales."""
        return FixedPoints(self.points / self.kernel.lengthscale)

    @cached_property
    def of_kernel_values(self) -> tuple[Tensor, Tensor]:
        """Each kernel's log signal variance, and the numbers ``2 / lengthscale``."""
        return self.kernel.scale.log()[:, None, None], 2 / self.kernel.lengthscale

    def whiten(self, values: Tensor) -> Tensor:
        """Whitens kernel values at the first ``n`` of the ``N`` fixed points.

        Args:
            values: A ``B x P x N`` tensor of kernel values between inputs and fixed points.

        Returns:
            A ``B x P x r`` tensor.
        """
        n = self.root.shape[-1]
        return values[..., :n] @ self.root.mT if n > 0 else values[..., :0]

    def linear(self, values: Tensor, whitened: Tensor) -> Tensor:
        """Evaluates the terms that are linear in kernel values, for mean, variance and covariances.

        Args:
            values: A ``B x P x N`` tensor of kernel values between inputs and fixed points.
            whitened: The result of :meth:`whiten` for ``values``.

        Returns:
            A ``P x (2 + T)`` tensor, summed over the ``B`` kernels.
        """
        r, n = self.root.shape[-2:]
        result = values[..., n:] @ self.columns[:, r:]
        if n > 0:
            result = torch.baddbmm(result, whitened, self.columns[:, :r])
        return result.sum(dim=0)

    def value(self, x: Tensor, differentiable: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluates the contributions of these terms to mean, variance and covariances.

        Args:
            x: A ``P x d`` tensor of inputs.
            differentiable: Whether :meth:`gradient` is called later.

        Returns:
            A ``P x (2 + T)`` tensor, and a tuple of tensors for :meth:`gradient`. The columns are
            the mean, the variance, and the covariances with the ``T`` fixed inputs, summed over the
            ``B`` kernels.
        """
        kernel = self.kernel
        function, scaled = stationary_function(kernel.name), x / kernel.lengthscale
        r2, (log_scale, _) = self.fixed.squared_distance(scaled), self.of_kernel_values
        if differentiable:
            values, slopes = function.value_and_derivative(r2, log_scale)
        else:
            values = slopes = function.value(r2, log_scale)
        products = whitened = self.whiten(values)
        result = self.linear(values, whitened)
        if self.root.numel() > 0:
            products = whitened * self.squares.unsqueeze(-2)
            result[:, 1] -= (whitened * products).sum(dim=(0, -1))
        return result, (scaled, slopes, products)

    def gradient(
        self, in_value: Tensor, scaled: Tensor, slopes: Tensor, products: Tensor
    ) -> Tensor:
        """Computes the gradient of an objective with respect to the inputs of :meth:`value`.

        The method :meth:`value` returns the arguments ``scaled``, ``slopes`` and ``products``.

        Args:
            in_value: A ``P x (2 + T)`` tensor: the gradient of the objective with respect to the
                first result of :meth:`value`.
            scaled: The inputs divided by the lengthscales.
            slopes: The derivatives of the kernels with respect to the squared distances.
            products: The whitened kernel values times ``squares``.

        Returns:
            A ``P x d`` tensor.
        """
        H = in_value @ self.columns.mT
        if (r := products.shape[-1]) > 0:
            in_whitened = torch.addcmul(H[..., :r], in_value[:, 1:2], products, value=-2)
            H = torch.cat([in_whitened @ self.root, H[..., r:]], dim=-1)
        of_scaled = gradient_in_inputs(H.mul_(slopes), scaled, self.fixed)
        return (of_scaled * self.of_kernel_values[1]).sum(dim=0)


@dataclass(frozen=True)
class Expansion:
    """Mean and covariance of a GP as sums of constants and of kernel values at fixed points.

    Args:
        parts: The terms that depend on the input of the GP.
        constants: A ``2 + T`` tensor in double precision: the constant terms of the mean (``m₀``),
            of the variance (``v₀``), and of the covariances with the ``T`` fixed inputs (``c₀``).
    """

    parts: Sequence[Part]
    constants: Tensor

    def mapped(self, matrix: Tensor) -> Expansion:
        """Returns a new expansion, which evaluates to this expansion's values times ``matrix``.

        The values are the row vector (mean, variance, covariances).
        """
        return Expansion([part.mapped(matrix) for part in self.parts], self.constants @ matrix)


class PriorKernel(Kernel, ABC):
    """Base class for prior kernels that are computed from source posteriors.

    Subclasses have no ``active_dims``, and their ``forward`` returns a tensor. They implement
    :meth:`draw`, because BoTorch draws sample paths only for GPyTorch's kernels. They may implement
    :meth:`expand`, so that predictions can use the closed-form posterior of ``gp.frozen``.
    """

    has_lengthscale = False

    @abstractmethod
    def draw(
        self, sample_shape: torch.Size, batch_shape: torch.Size, num_features: int, **kwargs: Any
    ) -> SamplePath:
        """Draws sample paths from a GP with mean zero and this kernel.

        Args:
            sample_shape: The sample shape.
            batch_shape: The batch shape of the model.
            num_features: The number of random features.
            **kwargs: Further arguments of BoTorch's ``draw_kernel_feature_paths``.

        Returns:
            The sample paths, as a function of transformed inputs. Later changes of the kernel do
            not change the paths.
        """

    def expand(self, mean: Mean, rest: Expansion, T: Tensor) -> Expansion | None:
        """Expands a prior with this kernel into a sum of kernel values, see :func:`.expand`.

        Args:
            mean: The prior's mean.
            rest: The expansion of the stationary kernels that are added to this kernel.
            T: The fixed inputs, a ``T x d`` tensor.

        Returns:
            The expansion of the whole prior; ``None`` if the prior is not supported. This base
            class always returns ``None``.
        """
        return None


def terms_of(kernel: Kernel) -> Iterator[Kernel]:
    """Yields the summands of a sum of kernels, or the kernel itself if it is not a sum."""
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        for term in kernel.kernels:
            yield from terms_of(cast(Kernel, term))
    else:
        yield kernel


@torch.no_grad()
def expand(mean: Mean, kernel: Kernel, T: Tensor) -> Expansion | None:
    """Writes a GP prior as constants plus sums of kernel values between inputs and fixed points.

    The kernel must be a sum of stationary kernels and at most one :class:`PriorKernel`. If there is
    a :class:`PriorKernel`, its method ``expand`` must support the mean. Otherwise, the mean must be
    constant.

    Args:
        mean: The prior mean.
        kernel: The prior kernel.
        T: The fixed inputs, a ``T x d`` tensor.

    Returns:
        The expansion, or ``None`` if the mean or the kernel is not supported.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> len(expand(ConstantMean(), RBFKernel(), torch.rand(3, 2)).parts)
        1
    """
    terms = [(term, Stationary.of(term)) for term in terms_of(kernel)]
    known = [each for _, each in terms if each is not None]
    others = [term for term, each in terms if each is None]
    constants = T.new_zeros(2 + len(T), dtype=torch.double)
    constants[1] = sum(each.scale.squeeze() for each in known)
    rest = Expansion([Part.of_kernel(each, T) for each in known], constants)
    if not others and type(mean) is ConstantMean:
        constants[0] = mean.constant
        return rest
    if len(others) == 1 and isinstance(others[0], PriorKernel):
        return others[0].expand(mean, rest, T)
    return None


def evaluate(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Evaluates a kernel without GPyTorch's lazy tensors.

    RBF and Matérn kernels are evaluated without GPyTorch, because GPyTorch compares ``x1`` with
    ``x2`` in each evaluation, and each comparison waits for the GPU.

    Args:
        kernel: The kernel.
        x1: A ``batch_shape x n1 x d`` tensor of inputs.
        x2: A ``batch_shape x n2 x d`` tensor of inputs.
        diag: Whether to return only the diagonal, ``k(x1_i, x2_i)``.

    Returns:
        A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``. It is
        differentiable with respect to the hyperparameters and the inputs.
    """
    if (stationary := Stationary.of(kernel)) is not None:
        return stationary.between(x1, x2, diag)
    if isinstance(kernel, PriorKernel):
        return kernel.forward(x1, x2, diag=diag)
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        values = [evaluate(cast(Kernel, term), x1, x2, diag) for term in kernel.kernels]
        return sum(values[1:], start=values[0])
    with gpytorch.settings.lazily_evaluate_kernels(False):
        return to_dense(kernel(x1, x2, diag=diag))
