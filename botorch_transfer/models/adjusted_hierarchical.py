"""Hierarchical models whose predictive covariance is another than their exact GP's."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.models.hierarchical import HierarchicalGP
from botorch_transfer.models.leave_one_out import (
    exact_leave_one_out,
    leave_one_out_posterior,
    observation_noise_variance,
)


class AdjustedHierarchicalGP(HierarchicalGP):
    """A hierarchical model that corrects the covariance of its exact GP when it predicts.

    The likelihood, and so the fit, is that of the exact GP; whatever calls the model in evaluation
    mode, be it ``posterior`` or entropy search, gets the corrected covariance.
    """

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the exact GP's posterior with its covariance corrected."""
        mvn = super().__call__(*args, **kwargs)
        return mvn if self.training else self._adjust(mvn, args[0])

    @abstractmethod
    def _adjust(self, mvn: MultivariateNormal, X: Tensor) -> MultivariateNormal:
        """Corrects the covariance of a posterior at ``batch_shape x q x d`` inputs."""

    @abstractmethod
    def _loo_variance(self, variance: Tensor, weights: Tensor) -> Tensor:
        """Corrects leave-one-out variances of the latent function.

        Args:
            variance: A ``batch_shape x n`` tensor: those of the exact GP.
            weights: A ``batch_shape x n x n`` tensor: the deviation of each point from what the
                others predict is a row of it times the deviations of all points.

        Returns:
            A ``batch_shape x n`` tensor.
        """

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, hyperparameters as they are.

        BoTorch's ``loo_cv`` reads the exact GP's covariance and so does not serve this model.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.

        Example:
            >>> model.loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        mean, variance = exact_leave_one_out(self)
        (X,) = self.train_inputs
        weights = torch.cholesky_inverse(self._residual_root(X))
        weights = weights / weights.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        variance = self._loo_variance(variance, weights)
        if observation_noise:
            variance = variance + self._noise(X)
        return leave_one_out_posterior(self, mean, variance)

    def _noise(self, X: Tensor) -> Tensor:
        """The observation noise variances of the target's points, ``batch_shape x n``."""
        return observation_noise_variance(self, X)

    def _residual_root(self, X: Tensor) -> Tensor:
        """The Cholesky factor of the residual's covariance at the target's points, with noise."""
        covariance = self.residual_covar_module(X).to_dense()
        return psd_safe_cholesky(covariance + self._noise(X).diag_embed())
