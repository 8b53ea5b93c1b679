"""Gamma hyperpriors for MAP: the density of the logarithm."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.priors import GammaPrior, Prior
from torch import Tensor


class LogDensityGammaPrior(GammaPrior):
    r"""A Gamma hyperprior that counts by its density of the logarithm.

    Where the maximum of a density is depends on the coordinates. A Gamma of a shape of at most one,
    as a few estimates of different magnitudes give it, has its maximum at zero: by MAP, lengthscale
    and noise end up there whenever there are only a few points, and a model that takes a function
    for white noise predicts nothing. The density of the logarithm, which the optimizer works with
    anyway, has its maximum at the mean, whatever the shape:

    .. math:: \log p(\log \theta) = \log \mathrm{Gamma}(\theta) + \log \theta.

    Draws are those of the Gamma distribution.

    Example:
        >>> prior = LogDensityGammaPrior(0.5, 2.0)
        >>> values = torch.tensor([0.01, 0.25, 1.0])
        >>> int(prior.log_prob(values).argmax())
        1
    """

    def log_prob(self, x: Tensor) -> Tensor:
        """The logarithm of the density of ``log(x)``."""
        return super().log_prob(x) + x.log()

    def expand(self, expand_shape: torch.Size, _instance: Any = None) -> LogDensityGammaPrior:
        """The same, repeated."""
        batch_shape = torch.Size(expand_shape)
        shape, rate = self.concentration.expand(batch_shape), self.rate.expand(batch_shape)
        return LogDensityGammaPrior(shape, rate, validate_args=False)


def for_map(prior: Prior) -> Prior:
    """Makes what to register on a module that is fitted by MAP.

    Args:
        prior: A hyperprior, univariate or of ``d`` independent hyperparameters.

    Returns:
        Of a Gamma, the same with the density of the logarithm; any other is returned as it is.

    Example:
        >>> for_map(GammaPrior(0.5, 2.0))
        LogDensityGammaPrior()
    """
    if not isinstance(prior, GammaPrior):
        return prior
    shape, rate = prior.concentration.detach().clone(), prior.rate.detach().clone()
    return LogDensityGammaPrior(shape, rate, validate_args=False)
