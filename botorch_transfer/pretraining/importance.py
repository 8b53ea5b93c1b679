"""Hyperparameters drawn from a hyperprior, weighted by what a task's data say of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_transfer.hyperpriors.draws import HyperparameterDraws
from botorch_transfer.kernels.stationary import squared_distance, stationary_function
from botorch_transfer.pretraining.cholesky import cholesky_or_nan

_CHUNK_ELEMENTS = 2**19
"""Matrix elements at a time: what a processor's cache holds; more takes twice as long."""


def log_likelihoods(
    draws: HyperparameterDraws, X: Tensor, Y: Tensor, Yvar: Tensor | None, kernel: str
) -> Tensor:
    """Evaluates one task's log marginal likelihood under each draw, in one batch.

    Args:
        draws: ``R`` draws of hyperparameters.
        X: An ``n x d`` tensor of inputs; ``n`` may be zero.
        Y: An ``n`` tensor of outcomes.
        Yvar: An ``n`` tensor of known noise variances; the draws' if omitted.
        kernel: The stationary kernel's name.

    Returns:
        An ``R`` tensor in double precision; minus infinity where a covariance matrix cannot be
        factorized.

    Example:
        >>> ones = torch.ones(3, dtype=torch.double)
        >>> draws = HyperparameterDraws(0 * ones, ones.unsqueeze(-1), ones, ones)
        >>> log_likelihoods(draws, ones[:2, None], ones[:2], None, "rbf").shape
        torch.Size([3])
    """
    X, Y = X.double(), Y.double()
    Yvar = None if Yvar is None else Yvar.double()
    num_rows = max(1, _CHUNK_ELEMENTS // max(1, len(X) ** 2))
    parts = [
        _log_likelihoods(draws[start : start + num_rows].to(X), X, Y, Yvar, kernel)
        for start in range(0, len(draws), num_rows)
    ]
    return torch.cat(parts)


@torch.no_grad()
def _log_likelihoods(
    draws: HyperparameterDraws, X: Tensor, Y: Tensor, Yvar: Tensor | None, kernel: str
) -> Tensor:
    scaled = X / draws.lengthscale.unsqueeze(-2)
    log_scale = draws.outputscale.log()[:, None, None]
    covariance = stationary_function(kernel).value(squared_distance(scaled, scaled), log_scale)
    noise = draws.noise.unsqueeze(-1) if Yvar is None else Yvar
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise)
    root = cholesky_or_nan(covariance)
    residual = (Y - draws.constant.unsqueeze(-1)).unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(root, residual, upper=False).squeeze(-1)
    value = -0.5 * whitened.square().sum(dim=-1)
    value = value - root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    value = value - 0.5 * len(X) * math.log(2 * math.pi)
    return value.nan_to_num(nan=-torch.inf, neginf=-torch.inf)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Says how many equally weighted draws tell as much as weighted ones.

    Args:
        log_weights: An ``R`` tensor of logarithms of weights, up to a constant.

    Returns:
        A scalar tensor, from 1 to ``R``.

    Example:
        >>> effective_sample_size(torch.zeros(4))
        tensor(4.)
    """
    weights = log_weights.softmax(dim=0)
    return 1 / weights.square().sum()


def systematic_resample(log_weights: Tensor, num: int, seed: int) -> Tensor:
    """Chooses draws, each as often as its weight says, up to rounding.

    Args:
        log_weights: An ``R`` tensor of logarithms of weights, up to a constant.
        num: How many to choose.
        seed: The seed of the common offset.

    Returns:
        A ``num`` tensor of indices, ascending. An index is there ``num`` times its share of the
        weights, rounded up or down.

    Example:
        >>> systematic_resample(torch.tensor([0.75, 0.25]).log(), num=4, seed=0)
        tensor([0, 0, 0, 1])
    """
    weights = log_weights.double().softmax(dim=0).cpu()
    offset = torch.rand(1, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    positions = (torch.arange(num, dtype=torch.double) + offset) / num
    chosen = torch.searchsorted(weights.cumsum(dim=0), positions)
    return chosen.clamp_max(len(weights) - 1).to(log_weights.device)
