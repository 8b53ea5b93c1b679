r"""Sparse posteriors, which approximate GPs given many data points by few inducing points.

A prediction of an exact GP given ``N`` data points takes ``N²`` operations. The sparse posterior of
[Titsias2009variational]_ replaces the data by ``r`` inducing inputs ``Z``. ``m`` is the prior mean,
and ``k(Z, Z) = P Pᵀ`` is the prior covariance at the inducing inputs. ``R`` is the covariance of
the outcomes ``y`` given the function values: the noise and, in a joint model, the covariance of
functions that belong to one task only. With ``V(x) = P⁻¹ k(Z, x)``, the sparse posterior is

.. code-block:: text

    B = V(X) R⁻¹ V(X)ᵀ = U diag(b) Uᵀ         a = V(X) R⁻¹ (y - m)
    α = P⁻ᵀ (I + B)⁻¹ a                       F = diag(√(b / (1 + b))) Uᵀ P⁻¹
    m'(x)     = m + k(x, Z) α
    k'(x, x') = k(x, x') - k(x, Z) Fᵀ F k(Z, x')

The exact posterior has the same form (``gp.posterior``): ``α`` and ``F`` replace its coefficients
and its inverse Cholesky factor. If ``R`` is block diagonal, ``B`` and ``a`` are sums over the
blocks. The total cost is then ``N r²`` operations, and the inversion of each block.

.. [Titsias2009variational]
    M. K. Titsias. Variational Learning of Inducing Variables in Sparse Gaussian Processes.
    AISTATS 2009.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from botorch.models.utils.inducing_point_allocators import GreedyVarianceReduction
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.stationary import Stationary

#: Maximum number of inputs of the data from which the inducing points are chosen.
MAX_CANDIDATES = 4096

#: The remaining variance of an input is the variance given the function values at the inducing
#: points.
#: Inducing points are added until the average remaining variance is below ``ENOUGH`` times the
#: signal variance, and below ``SHARE_OF_NOISE`` times the smallest noise variance.
ENOUGH, SHARE_OF_NOISE = 1e-5, 1e-3

#: An input is not chosen if its remaining variance, divided by the signal variance, is below this
#: value, because the input is almost equal to an inducing point.
_SMALLEST_PIVOT = 1e-10


class Coefficients(NamedTuple):
    """Inducing points and coefficients of a sparse posterior, see ``gp.distilled``.

    Args:
        points: The ``r x d`` tensor ``Z`` of inducing inputs.
        alpha: The ``r x k`` tensor ``α``: coefficients of the posterior mean for each of ``k``
            vectors of outcomes.
        inverse_root: The ``r x r`` tensor ``F``: coefficients of the posterior covariance.
    """

    points: Tensor
    alpha: Tensor
    inverse_root: Tensor


def different_rows(X: Tensor, most: int) -> Tensor:
    """Chooses distinct inputs, evenly spaced in the sorted list of all distinct inputs.

    Args:
        X: An ``N x d`` tensor of inputs.
        most: The maximum number of inputs to choose.

    Returns:
        The row indices of the chosen inputs. If the rows of ``X`` are permuted, the same inputs are
        chosen.

    Example:
        >>> different_rows(torch.tensor([[0.5], [0.1], [0.5]]), most=5)
        tensor([1, 2])
    """
    different, place = X.unique(dim=0, return_inverse=True)
    rows = place.new_empty(len(different))
    rows.scatter_(0, place, torch.arange(len(X), device=X.device))
    return rows[evenly_spaced(len(different), most)]


class InducingPoints:
    """Inducing points of one GP, and the Cholesky factor ``P`` of their prior covariance.

    Args:
        kernel: The GP's kernel.
        points: The ``r x d`` inducing inputs ``Z``.

    Example:
        >>> kernel = Stationary("rbf", torch.ones(1, 2).double(), torch.tensor(1.0).double())
        >>> X = torch.rand(50, 2).double()
        >>> inducing = InducingPoints.chosen(kernel, X, most=20, noise=torch.ones(50))
        >>> V = inducing.whiten(X)  # the noise variance is one
        >>> inducing.condense(V @ V.mT, V @ X.sum(-1, keepdim=True)).alpha.shape[-1]
        1
    """

    def __init__(self, kernel: Stationary, points: Tensor) -> None:
        self.kernel, self.points = kernel, points
        self.root = psd_safe_cholesky(kernel.between(points, points))

    @classmethod
    def chosen(cls, kernel: Stationary, X: Tensor, most: int, noise: Tensor) -> InducingPoints:
        """Chooses inducing points from the inputs of the data by greedy variance reduction.

        Each step adds the input with the largest remaining variance. The remaining variance is the
        variance of the function given its values at the points chosen before. The selection stops
        when the average remaining variance is small.

        Args:
            kernel: The GP's kernel.
            X: An ``N x d`` tensor of inputs.
            most: The maximum number of inducing points.
            noise: Noise variances of the data. Points are added until the remaining variance is
                also small relative to the smallest noise variance.

        Returns:
            The inducing points, a subset of the inputs.
        """
        candidates = X[different_rows(X, MAX_CANDIDATES)]
        # The allocator stops at the variance 1e-6: the scale changes this to `_SMALLEST_PIVOT`.
        scale = torch.full_like(kernel.scale, 1e-6 / _SMALLEST_PIVOT)
        unit = Stationary(kernel.name, kernel.lengthscale, scale).make_kernel()
        points = GreedyVarianceReduction().allocate_inducing_points(
            candidates, unit, min(most, len(candidates)), torch.Size()
        )
        inducing = cls(kernel, points)
        enough = min(ENOUGH, SHARE_OF_NOISE * float(noise.min() / kernel.scale))
        left = 1 - inducing.whiten(candidates).square().mean(-1).cumsum(0) / kernel.scale
        needed = int((left > enough).sum()) + 1
        return inducing if needed >= len(points) else cls(kernel, points[:needed])

    @classmethod
    def between(cls, kernel: Stationary, X: Tensor) -> InducingPoints:
        """Builds inducing points at the midpoints between pairs of inputs.

        Each step pairs the two nearest inputs that are not in a pair yet.

        Args:
            kernel: The GP's kernel.
            X: An ``N x d`` tensor of inputs.

        Returns:
            At most ``N / 2`` inducing points, none of them equal to an input. If all inputs are
            equal, this input is the only inducing point.

        Example:
            >>> kernel = Stationary("rbf", torch.ones(1, 1).double(), torch.tensor(1.0).double())
            >>> InducingPoints.between(kernel, torch.tensor([[0.0], [0.5], [0.9]]).double()).points
            tensor([[0.7000]], dtype=torch.float64)
        """
        X = X.unique(dim=0)
        if len(X) == 1:
            return cls(kernel, X)
        left, pairs = torch.cdist(X, X).fill_diagonal_(torch.inf), list[list[int]]()
        for _ in range(len(X) // 2):
            pairs.append(list(divmod(int(left.argmin()), len(X))))
            left[pairs[-1]] = left[:, pairs[-1]] = torch.inf
        points = X[torch.tensor(pairs)].mean(dim=1)
        return cls(kernel, points[(points.unsqueeze(1) != X).any(dim=-1).all(dim=-1)])

    def whiten(self, x: Tensor) -> Tensor:
        """Computes ``V(x) = P⁻¹ k(Z, x)`` for ``n x d`` inputs, an ``r x n`` tensor."""
        cross = self.kernel.between(self.points, x)
        return torch.linalg.solve_triangular(self.root, cross, upper=False)

    def condense(self, precision: Tensor, weighted: Tensor) -> Coefficients:
        """Computes the coefficients ``α`` and ``F`` of the sparse posterior given data.

        Args:
            precision: The ``r x r`` tensor ``B = V(X) R⁻¹ V(X)ᵀ``.
            weighted: An ``r x k`` tensor: ``a = V(X) R⁻¹ (y - m)`` for each of ``k`` vectors of
                outcomes.

        Returns:
            The inducing points and the coefficients.
        """
        values, vectors, rotated = self._eigen(precision)
        values = values.clamp_min(0.0)  # rounding can make them slightly negative
        alpha = rotated @ ((vectors.mT @ weighted) / (1 + values))
        return Coefficients(self.points, alpha, (values / (1 + values)).sqrt() * rotated.mT)

    def project(self, mean: Tensor, covariance: Tensor) -> Coefficients:
        """Computes the coefficients of a sparse posterior from its moments at the inducing points.

        Args:
            mean: An ``r x k`` tensor of ``k`` terms: their sum is the posterior mean minus the
                prior mean.
            covariance: The ``r x r`` posterior covariance.

        Returns:
            The inducing points and the coefficients.
        """
        half = torch.linalg.solve_triangular(self.root, covariance, upper=False)
        left = torch.linalg.solve_triangular(self.root, half.mT, upper=False)
        values, _, rotated = self._eigen(left)
        known = (1 - values).clamp_min(0.0).sqrt()
        return Coefficients(self.points, torch.cholesky_solve(mean, self.root), known * rotated.mT)

    def _eigen(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        rotated = torch.linalg.solve_triangular(self.root.mT, vectors, upper=True)
        return values.unsqueeze(-1), vectors, rotated
