"""Posteriors of an ensemble at many single points, as acquisition functions ask for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.posteriors import Posterior
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

_TOGETHER = 64
"""How many points share a covariance matrix that nobody asks for."""


def mixture_of_single_points(
    evaluate: Callable[[Tensor], Posterior], X: Tensor
) -> GaussianMixturePosterior | None:
    """Evaluates an ensemble at points one by one.

    As a batch, each point would have its own copy of every member's Cholesky factor: gigabytes for
    some hundred points and members. So they are evaluated jointly, a few at a time, and their
    covariances dropped.

    Args:
        evaluate: Evaluates the members' joint posterior at a ``q x d`` tensor of points, with
            moments ``num_members x q``.
        X: A ``batch_shape x 1 x d`` tensor of inputs.

    Returns:
        A mixture with moments ``batch_shape x num_members x 1 x 1``; ``None`` if ``X`` is of
        another shape, or the members' posteriors are not Gaussian.

    Example:
        >>> X = torch.rand(200, 1, 3)
        >>> def two_members(X):
        ...     covariance = torch.eye(len(X)).expand(2, -1, -1)
        ...     return GPyTorchPosterior(MultivariateNormal(torch.zeros(2, len(X)), covariance))
        >>> mixture_of_single_points(two_members, X).mean.shape
        torch.Size([200, 2, 1, 1])
    """
    if X.dim() < 3 or X.shape[-2] != 1 or X.numel() == 0:
        return None
    parts = []
    for points in X.reshape(-1, X.shape[-1]).split(_TOGETHER):
        posterior = evaluate(points)
        if not isinstance(posterior, GPyTorchPosterior):
            return None
        parts.append(posterior.distribution)
    shape = (*X.shape[:-2], len(parts[0].mean), 1)
    mean = torch.cat([part.mean for part in parts], dim=-1).mT.reshape(shape)
    variance = torch.cat([part.variance for part in parts], dim=-1).mT.reshape(shape)
    return GaussianMixturePosterior(MultivariateNormal(mean, variance.unsqueeze(-1)))
