r"""Whether each source task resembles the target, is unrelated to it, or its opposite.

The target's data are explained by ``y = a + b μ_m(x) + g(x) + ε`` with a source's posterior mean
``μ_m`` (and what the source is unsure of), an unknown level ``a``, and a GP ``g`` whose scale and
lengthscale are averaged over a grid, as is the noise. Marginal likelihoods with ``b < 0`` and
``b > 0`` against that with ``b = 0`` say which it is. It is a question about the data, not about a
model: the answer is the same for all models with the same sources.
"""

from __future__ import annotations

import math
from itertools import product

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.kernels.conditioned_batch import ConditionedBatch
from botorch_transfer.kernels.stationary import squared_distance
from botorch_transfer.outcome_transforms import usable_deviation

SLOPES = (0.25, 0.5, 1.0, 2.0)
LENGTHSCALES = (0.15, 0.3, 0.6, 1.2)
SCALES = (0.03, 0.1, 0.3, 1.0)
NOISES = (1e-4, 1e-2)
MAX_POINTS = 100


def slope_evidence(
    gps: ConditionedBatch, X: Tensor, Y: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compares negative and positive slopes with none, for every source.

    Args:
        gps: The source GPs.
        X: An ``n x d`` tensor of target inputs, transformed.
        Y: An ``n`` tensor of target outcomes, in any units.
        noise: An ``n`` tensor of known noise variances; averaged over a grid if omitted.

    Returns:
        An ``M x 2`` tensor of log Bayes factors, of negative slopes and of positive ones against
        none; and the ``M`` posterior means of the slopes, all three as likely beforehand.
    """
    X, Y, noise = _standardized(X, Y, noise)
    residual = _residual_covariances(X, noise)
    means, covariances = gps.mean(X), gps.covariance(X)
    slopes = [*(-slope for slope in SLOPES), 0.0, *SLOPES]
    densities = torch.stack(
        [_log_density(Y - slope * means, slope**2 * covariances, residual) for slope in slopes],
        dim=-1,
    )
    num = len(SLOPES)
    share = torch.tensor([1 / num] * num + [1.0] + [1 / num] * num).to(densities)
    weighted = densities + share.log()
    negative, none, positive = (
        part.logsumexp(dim=-1) for part in weighted.split([num, 1, num], dim=-1)
    )
    mean_slope = weighted.softmax(dim=-1) @ torch.tensor(slopes).to(densities)
    return torch.stack([negative - none, positive - none], dim=-1), mean_slope


def _standardized(
    X: Tensor, Y: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Standardizes the target by itself, because its units may differ from its sources'."""
    # More points make a clear case no clearer, and cost their third power.
    rows = torch.linspace(0, len(Y) - 1, min(len(Y), MAX_POINTS)).round().long().to(X.device)
    X, Y = X[rows].double(), Y[rows].double()
    scale = Y.new_ones(())
    if len(Y) > 1:
        scale = usable_deviation(Y.std(correction=0), Y.mean())
    if noise is not None:
        noise = noise[rows].double() / scale.square() + NOISES[0]
    return X, (Y - Y.mean()) / scale, noise


def _residual_covariances(X: Tensor, noise: Tensor | None) -> Tensor:
    """Covariances of level, residual and noise on a grid: ``G x n x n``."""
    distance = squared_distance(X, X)
    eye = torch.eye(len(X), dtype=X.dtype, device=X.device)
    noises = [value * eye for value in NOISES] if noise is None else [noise.diag()]
    return torch.stack(
        [
            1.0 + scale * torch.exp(-0.5 * distance / lengthscale**2) + diagonal
            for lengthscale, scale, diagonal in product(LENGTHSCALES, SCALES, noises)
        ]
    )


def _log_density(errors: Tensor, covariance: Tensor, residual: Tensor) -> Tensor:
    """The log density of errors, averaged over the grid of residual covariances.

    Args:
        errors: An ``M x n`` tensor.
        covariance: An ``M x n x n`` tensor.
        residual: A ``G x n x n`` tensor.

    Returns:
        An ``M`` tensor.
    """
    n = errors.shape[-1]
    root = psd_safe_cholesky(covariance.unsqueeze(1) + residual)
    errors = errors.unsqueeze(1).expand(root.shape[:-1]).unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(root, errors, upper=False)
    log_density = -0.5 * (whitened.square().sum(dim=(-2, -1)) + n * math.log(2 * math.pi))
    log_density = log_density - root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return log_density.logsumexp(dim=-1) - math.log(len(residual))
