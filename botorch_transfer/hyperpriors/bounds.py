"""Start and bounds of a hyperparameter, from its hyperprior."""

from __future__ import annotations

import torch
from gpytorch.priors import GammaPrior, Prior, UniformPrior
from scipy import stats
from torch import Tensor

_LOWEST, _HIGHEST = 1e-4, 1e3
"""Bounds relative to the mean."""

_CORNER = 0.01
"""The quantile below which a density that is unbounded at zero is cut off."""


def start_and_bounds(prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """Finds where to start, and in which bounds to stay, when a hyperparameter is fitted.

    The start is the hyperprior's mean. A Gamma density of a shape of at most one has its maximum at
    zero, where a hyperparameter would end up without enough data: its lowest percentile is cut off.

    Args:
        prior: A Gamma or uniform prior, univariate or of ``d`` independent hyperparameters.

    Returns:
        Start, lower and upper bound, tensors of the shape of the prior.

    Example:
        >>> start, lower, upper = start_and_bounds(GammaPrior(2.0, 4.0))
        >>> float(start)
        0.5
    """
    if isinstance(prior, UniformPrior):
        low, high = torch.as_tensor(prior.low), torch.as_tensor(prior.high)
        return (low + high) / 2, low, high
    assert isinstance(prior, GammaPrior)
    shape, mean = prior.concentration.detach(), prior.mean.detach()
    quantile = stats.gamma.ppf(_CORNER, shape.double().cpu().numpy(), scale=1.0)
    corner = torch.as_tensor(quantile).to(mean) / shape * mean
    lower = torch.where(shape > 1, _LOWEST * mean, torch.maximum(corner, _LOWEST * mean))
    return mean, lower, _HIGHEST * mean
