"""How a guarded model weighs its transfer model against its plain GP.

The rule was chosen by experiment, see ``benchmarks/adversarial``. Plain leave-one-out likelihood
gives up good history too early: the points are few, dependent, and the hyperparameters were fitted
to them. So the odds start in favour of transfer, and the evidence counts a part only. With one or
two points a fit says nothing of what the history is worth, because hyperparameters bend to explain
them; there the evidence is how likely they were before any fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.distributions import Normal

Moments = tuple[Tensor, Tensor]
"""Means and variances, ``batch_shape x n`` tensors."""


@dataclass(frozen=True)
class GuardRule:
    """The weight of the transfer model, ``sigmoid(log odds + temperature * log evidence)``.

    Args:
        prior_weight: The weight without evidence, above which it lies in favour of transfer.
        temperature: The part of the log evidence that counts.
        blind_points: The number of points up to which the evidence is that before any fit.
        agreement: Without points there is no evidence but what the source tasks say of one another.
            They are followed if they predict one another: if their mean rank correlation is more
            than so many standard errors above zero. ``-inf`` follows them always.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> GuardRule().weight(torch.tensor([-20.0, 0.0, 20.0]))
        tensor([0.0098, 0.8000, 0.9994])
    """

    prior_weight: float = 0.8
    temperature: float = 0.3
    blind_points: int = 2
    agreement: float = 2.5

    def __post_init__(self) -> None:
        if not 0 < self.prior_weight < 1:
            raise ValueError(f"prior_weight must be between 0 and 1, not {self.prior_weight}.")
        if self.temperature < 0 or self.blind_points < 0:
            raise ValueError("temperature and blind_points must not be negative.")

    def weight(self, evidence: Tensor) -> Tensor:
        """Turns log evidence for the transfer model into its weight.

        Args:
            evidence: A ``batch_shape`` tensor.

        Returns:
            A ``batch_shape`` tensor between 0 and 1.
        """
        odds = math.log(self.prior_weight / (1 - self.prior_weight))
        return torch.sigmoid(odds + self.temperature * evidence)


def leave_one_out_evidence(Y: Tensor, transfer: Moments, plain: Moments, noise: Tensor) -> Tensor:
    """How much better the transfer model predicts every point from the others.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.
        transfer: The transfer model's latent predictions.
        plain: The plain GP's.
        noise: A ``batch_shape x n`` tensor: the noise variances, the same for both.

    Returns:
        A ``batch_shape`` tensor: the difference of summed log predictive densities.
    """
    left, right = (
        Normal(mean, (variance.clamp_min(0.0) + noise).sqrt()).log_prob(Y)
        for mean, variance in (transfer, plain)
    )
    return (left - right).sum(dim=-1)


def prior_evidence(
    Y: Tensor, transfer: MultivariateNormal, plain: MultivariateNormal, noise: Tensor
) -> Tensor:
    """How much likelier the points were under the transferred prior than under the plain one.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.
        transfer: The transferred prior at the points.
        plain: The plain GP's prior at the points.
        noise: A ``batch_shape x n`` tensor: the noise variances, the same for both.

    Returns:
        A ``batch_shape`` tensor: the difference of log densities. Both priors are given an unknown
        level of unit variance: that the target lies higher or lower than its sources is no evidence
        against these.
    """
    left, right = (_log_density(Y - p.mean, p.covariance_matrix, noise) for p in (transfer, plain))
    return left - right


def _log_density(errors: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """The log density up to a constant: ``batch_shape``."""
    eye = torch.eye(errors.shape[-1], dtype=torch.double, device=errors.device)
    covariance = covariance.double() + 1.0 + noise.double().diag_embed() + 1e-6 * eye
    root = psd_safe_cholesky(covariance)
    whitened = torch.linalg.solve_triangular(root, errors.double().unsqueeze(-1), upper=False)
    log_determinant = root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return -0.5 * whitened.square().sum(dim=(-2, -1)) - log_determinant
