"""The target's default likelihoods."""

from __future__ import annotations

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, Hyperparameter

_NOISE = RESIDUAL_HYPERPARAMETERS.noise


class UnseenNoiseLikelihood(FixedNoiseGaussianLikelihood):
    """The likelihood of known noise before there is any observation.

    BoTorch takes the mean of the known noise for that of new observations. Without any, the
    starting value of an inferred noise stands in.

    Args:
        noise: A ``batch_shape x 0`` tensor.
        stand_in: The noise variance that stands in.

    Example:
        >>> UnseenNoiseLikelihood(torch.zeros(0)).noise
        tensor([0.0010])
    """

    def __init__(self, noise: Tensor, stand_in: float = _NOISE.start) -> None:
        super().__init__(noise)
        self.stand_in = stand_in

    @property
    def noise(self) -> Tensor:
        """The noise variances: those of the points, or the one that stands in for them."""
        known = self.noise_covar.noise
        if known.shape[-1] > 0:
            return known
        return known.new_full((*known.shape[:-1], 1), self.stand_in)


def default_likelihood(
    batch_shape: torch.Size, train_Yvar: Tensor | None, noise: Hyperparameter = _NOISE
) -> GaussianLikelihood | UnseenNoiseLikelihood | None:
    """Builds the target's default likelihood.

    Args:
        batch_shape: The batch shape of the target model.
        train_Yvar: The ``batch_shape x n x 1`` known noise variances, if they are known.
        noise: Hyperprior, start and bounds of an inferred noise; by default those of ScaML-GP.

    Returns:
        A Gaussian likelihood; with known noise ``None``, where BoTorch's own default will do.
    """
    if train_Yvar is None:
        return residual_likelihood(batch_shape, noise)
    if train_Yvar.shape[-2] == 0:
        return UnseenNoiseLikelihood(train_Yvar.squeeze(-1), noise.start)
    return None


def residual_likelihood(
    batch_shape: torch.Size, noise: Hyperparameter = _NOISE
) -> GaussianLikelihood:
    """Builds a likelihood with inferred noise.

    Args:
        batch_shape: The batch shape of the target model.
        noise: Its hyperprior, start and bounds; by default those of ScaML-GP.

    Returns:
        A Gaussian likelihood.
    """
    return GaussianLikelihood(
        noise_prior=noise.prior(), noise_constraint=noise.constraint(), batch_shape=batch_shape
    )
