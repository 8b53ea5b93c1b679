"""Where to look before there is any outcome of the new task: what the transferred prior says."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model, ModelList
from botorch.utils.transforms import is_ensemble, t_batch_mode_transform
from torch import Tensor
from torch.special import log_ndtr


class PriorUpperConfidenceBound(AcquisitionFunction):
    r"""The upper confidence bound of the objectives, and the chance that constraints are met.

    It needs no observation, so that the transferred prior alone can suggest the first trials:

    .. code-block:: text

        mean over objectives of (μ + √β σ) / scale + sum over constraints of log P(it is met)

    Trials that are pending shrink σ as if their outcomes were what is expected (Desautels et al.,
    Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit optimization, JMLR
    2014). An ensemble of models counts as the mixture that it is: μ and σ are its moments.

    Args:
        model: A model of ``m`` outcomes, with one model an outcome if ``m`` is not one.
        objective_weights: A ``k x m`` tensor, a row for each objective, that is to be maximized.
        outcome_constraints: ``(A, b)`` for constraints ``A f(x) <= b``.
        X_pending: A ``p x d`` tensor of inputs that are being evaluated.
        beta: The square of the number of standard deviations.
        X_reference: An ``n x d`` tensor of inputs all over the search space. Each objective's scale
            is its standard deviation there, of the means and about them, so that no unit drowns
            the constraints or another objective. If omitted, scales are one.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> none = torch.empty(0, 2, dtype=torch.double)
        >>> model = ScaMLGP(none, none[:, :1], {"monday": (X, X.sum(-1, keepdim=True))})
        >>> weights = torch.ones(1, 1, dtype=torch.double)
        >>> PriorUpperConfidenceBound(model, weights)(X.unsqueeze(-2)).shape
        torch.Size([20])
    """

    def __init__(
        self,
        model: Model,
        objective_weights: Tensor,
        outcome_constraints: tuple[Tensor, Tensor] | None = None,
        X_pending: Tensor | None = None,
        beta: float = 9.0,
        X_reference: Tensor | None = None,
    ) -> None:
        super().__init__(model)
        self.models: list[Any] = list(model.models) if isinstance(model, ModelList) else [model]
        self.objective_weights = objective_weights
        self.outcome_constraints = outcome_constraints
        self.beta = beta
        self.set_X_pending(None)
        self.scale: Tensor | float = 1.0 if X_reference is None else self._deviations(X_reference)
        self.set_X_pending(X_pending)

    @torch.no_grad()
    def _deviations(self, X: Tensor) -> Tensor:
        """Each objective's deviation over the inputs, by the law of total variance."""
        mean, variance = self._all_moments(X.unsqueeze(-2))
        weights = self.objective_weights.to(mean)
        spread = (mean @ weights.T).var(dim=0, correction=0)
        return (spread + (variance @ weights.square().T).mean(dim=0)).sqrt()

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the acquisition.

        Args:
            X: A ``batch_shape x 1 x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values.
        """
        mean, variance = self._all_moments(X)
        weights = self.objective_weights.to(mean)
        deviation = (variance @ weights.square().T).sqrt()
        bounds = mean @ weights.T + math.sqrt(self.beta) * deviation
        value = (bounds / self.scale).mean(dim=-1)
        if self.outcome_constraints is None:
            return value
        A, b = (part.to(mean) for part in self.outcome_constraints)
        slack = b.squeeze(-1) - mean @ A.T
        return value + log_ndtr(slack / (variance @ A.square().T).sqrt()).sum(dim=-1)

    def _all_moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of all outcomes, each ``batch_shape x m``."""
        moments = [self._moments(model, X) for model in self.models]
        mean, variance = (torch.stack(parts, dim=-1) for parts in zip(*moments, strict=True))
        return mean, variance

    def _moments(self, model: Any, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at each of the inputs, the latter given the pending ones, too."""
        if self.X_pending is None:
            posterior = model.posterior(X)
            mean, variance = posterior.mean[..., 0, 0], posterior.variance[..., 0, 0]
        else:
            mean, variance = _given_pending(model, X, self.X_pending.to(X))
        if is_ensemble(model):  # the moments of a mixture
            variance = variance.mean(dim=-1) + mean.var(dim=-1, correction=0)
            mean = mean.mean(dim=-1)
        return mean, variance.clamp_min(1e-12)


def _given_pending(model: Any, X: Tensor, X_pending: Tensor) -> tuple[Tensor, Tensor]:
    """Moments at single inputs, the variance as if outcomes at the pending ones were known."""
    pending = X_pending.expand(*X.shape[:-2], *X_pending.shape)
    mvn = model.posterior(torch.cat([X, pending], dim=-2)).distribution
    covariance = mvn.covariance_matrix
    inner, cross = covariance[..., 1:, 1:], covariance[..., 1:, :1]
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
    jitter = 1e-4 * scale * torch.eye(inner.shape[-1]).to(inner)
    factor, _ = torch.linalg.cholesky_ex(inner + jitter)
    explained = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(dim=-2)
    return mvn.mean[..., 0], covariance[..., 0, 0] - explained[..., 0]
