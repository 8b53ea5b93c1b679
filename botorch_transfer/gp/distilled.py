r"""Data of many rows, summarized on few inducing points.

The posterior of a GP given ``N`` rows costs ``N²`` numbers a query. Read this for the sparse
posterior of [Titsias2009variational]_, which takes ``r`` inducing inputs ``Z`` and is again a mean
and a kernel of the same form. With ``K = k(Z, Z) = P Pᵀ``, with ``R`` the covariance of the rows'
residual (noise, or noise and the parts of their task alone) and with the whitened inputs ``V(x) =
P⁻¹ k(Z, x)``,

.. code-block:: text

    B = V(X) R⁻¹ V(X)ᵀ = U diag(b) Uᵀ         a = V(X) R⁻¹ (y - m)
    α = P⁻ᵀ (I + B)⁻¹ a                       F = diag(√(b / (1 + b))) Uᵀ P⁻¹
    m'(x)     = m + k(x, Z) α
    k'(x, x') = k(x, x') - k(x, Z) Fᵀ F k(Z, x')

so ``α`` and ``F`` take the places that ``K⁻¹ y`` and the inverse Cholesky factor have in the exact
posterior. ``B`` and ``a`` are sums over blocks of rows that are independent given the function, so
that the cost is the blocks' cost plus ``N r²``.

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

MAX_CANDIDATES = 4096
"""From how many of the data's inputs the inducing points are chosen, at most."""

ENOUGH, SHARE_OF_NOISE = 1e-5, 1e-3
"""More inducing points are not worth their time once this share of the variance is left, nor more
than this share of the noise."""

_SMALLEST_PIVOT = 1e-10
"""Inputs that add less than this share of the variance are taken for others that are chosen."""


class Coefficients(NamedTuple):
    """A posterior on inducing points, as a query needs it.

    Args:
        points: The ``r x d`` inducing inputs.
        alpha: An ``r x k`` tensor: the coefficients of the mean, for each column of outcomes.
        inverse_root: The ``r x r`` tensor ``F``.
    """

    points: Tensor
    alpha: Tensor
    inverse_root: Tensor


def different_rows(X: Tensor, most: int) -> Tensor:
    """Chooses different inputs from all over the data.

    Args:
        X: An ``N x d`` tensor of inputs.
        most: How many to choose at most.

    Returns:
        Their indices; which inputs these are does not depend on the order of the rows.

    Example:
        >>> different_rows(torch.tensor([[0.5], [0.1], [0.5]]), most=5)
        tensor([1, 2])
    """
    different, place = X.unique(dim=0, return_inverse=True)
    rows = place.new_empty(len(different))
    rows.scatter_(0, place, torch.arange(len(X), device=X.device))
    return rows[evenly_spaced(len(different), most)]


class InducingPoints:
    """Inducing inputs of one GP, and the Cholesky factor ``P`` of its covariance there.

    Args:
        kernel: The GP's kernel.
        points: The ``r x d`` inducing inputs ``Z``.

    Example:
        >>> kernel = Stationary("rbf", torch.ones(1, 2).double(), torch.tensor(1.0).double())
        >>> X = torch.rand(50, 2).double()
        >>> inducing = InducingPoints.chosen(kernel, X, most=20)
        >>> V = inducing.whiten(X)  # of noise with variance one:
        >>> inducing.condense(V @ V.mT, V @ X.sum(-1, keepdim=True)).alpha.shape[-1]
        1
    """

    def __init__(self, kernel: Stationary, points: Tensor) -> None:
        self.kernel, self.points = kernel, points
        self.root = psd_safe_cholesky(kernel.between(points, points))

    @classmethod
    def chosen(
        cls, kernel: Stationary, X: Tensor, most: int, noise: Tensor | None = None
    ) -> InducingPoints:
        """Chooses inputs whose function values tell most about those at all others.

        They are added greedily where the variance is largest, until little of it is left.

        Args:
            kernel: The GP's kernel.
            X: An ``N x d`` tensor of inputs.
            most: The largest number of inducing points.
            noise: Noise variances of the data: what is left has to be small against them, too.

        Returns:
            The inducing points, some of these inputs.
        """
        candidates = X[different_rows(X, MAX_CANDIDATES)]
        # The allocator stops at 1e-6, in these units.
        scale = torch.full_like(kernel.scale, 1e-6 / _SMALLEST_PIVOT)
        unit = Stationary(kernel.name, kernel.lengthscale, scale).make_kernel()
        points = GreedyVarianceReduction().allocate_inducing_points(
            candidates, unit, min(most, len(candidates)), torch.Size()
        )
        inducing, enough = cls(kernel, points), ENOUGH
        if noise is not None:
            enough = min(enough, SHARE_OF_NOISE * float(noise.min() / kernel.scale))
        left = 1 - inducing.whiten(candidates).square().mean(-1).cumsum(0) / kernel.scale
        needed = int((left > enough).sum()) + 1
        return inducing if needed >= len(points) else cls(kernel, points[:needed])

    @classmethod
    def between(cls, kernel: Stationary, X: Tensor) -> InducingPoints:
        """Takes the means of pairs of inputs, the nearest two first.

        Args:
            kernel: The GP's kernel.
            X: An ``N x d`` tensor of inputs.

        Returns:
            At most ``N / 2`` inducing points. None of them is one of these inputs, unless there is
            only one.

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
        """Computes ``V(x)``, an ``r x n`` tensor, for ``n x d`` inputs."""
        cross = self.kernel.between(self.points, x)
        return torch.linalg.solve_triangular(self.root, cross, upper=False)

    def condense(self, precision: Tensor, weighted: Tensor) -> Coefficients:
        """Converts the data's precision and mean at the inducing points to a posterior.

        Args:
            precision: The ``r x r`` tensor ``B``.
            weighted: An ``r x k`` tensor: ``a`` for each column of outcomes.

        Returns:
            The coefficients.
        """
        values, vectors, rotated = self._eigen(precision)
        values = values.clamp_min(0.0)  # rounding can make them slightly negative
        alpha = rotated @ ((vectors.mT @ weighted) / (1 + values))
        return Coefficients(self.points, alpha, (values / (1 + values)).sqrt() * rotated.mT)

    def project(self, mean: Tensor, covariance: Tensor) -> Coefficients:
        """Keeps a posterior of the GP by its moments at the inducing points.

        Args:
            mean: An ``r x k`` tensor: its mean minus the prior mean, or the summands of the latter.
            covariance: Its ``r x r`` covariance.

        Returns:
            The coefficients, of a posterior that has these moments at the inducing points.
        """
        half = torch.linalg.solve_triangular(self.root, covariance, upper=False)
        left = torch.linalg.solve_triangular(self.root, half.mT, upper=False)
        values, _, rotated = self._eigen(left)
        known = (1 - values).clamp_min(0.0).sqrt()
        return Coefficients(self.points, torch.cholesky_solve(mean, self.root), known * rotated.mT)

    def _eigen(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The ``r x 1`` eigenvalues and the vectors ``U`` of a whitened matrix, and ``P⁻ᵀ U``."""
        values, vectors = torch.linalg.eigh(matrix)
        rotated = torch.linalg.solve_triangular(self.root.mT, vectors, upper=True)
        return values.unsqueeze(-1), vectors, rotated
