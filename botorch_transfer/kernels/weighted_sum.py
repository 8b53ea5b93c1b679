"""The mean and the kernel of a weighted sum of source posteriors.

Read it for the source part of ScaML-GP, the hierarchical GPs and the weighted ensembles.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.kernels.cache import Cache, collapse_batch, same_inputs
from botorch_transfer.kernels.conditioned_batch import ConditionedBatch
from botorch_transfer.kernels.weights import SourceWeights


class WeightedSumKernel(Kernel):
    r"""``Σ_m w_m² Σ_m(x, x')``, the covariance of ``Σ_m w_m f_m`` under the source posteriors.

    This is the source part of ScaML-GP's kernel, Eq. (6) of [Tighineanu2023scaml]_.

    Args:
        gps: The source GPs, conditioned on their data.
        task_weights: The weights; every task counts once if omitted.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> gps = ConditionedGPs(X, X.sum(-1), ones.bool(), ones[:, :2], ones[:, 0], ones)
        >>> WeightedSumKernel(gps, TaskWeights(num_tasks=3))(torch.rand(4, 2)).shape
        torch.Size([4, 4])
    """

    has_lengthscale = False

    def __init__(self, gps: ConditionedBatch, task_weights: SourceWeights | None = None) -> None:
        batch_shape = torch.Size() if task_weights is None else task_weights.batch_shape
        super().__init__(batch_shape=batch_shape)
        self.gps = gps
        self.task_weights = task_weights
        self._whitened = Cache()
        self._covariance = Cache()

    def __getitem__(self, index: Any) -> WeightedSumKernel:
        """Selects from the batch of weights."""
        if self.task_weights is None or not len(self.batch_shape):
            return self
        return WeightedSumKernel(self.gps, self.task_weights[index])

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        same = same_inputs(x1, x2)
        values = self._variance(x1, x2, same) if diag else self._covariances(x1, x2, same)
        event_dims = 1 if diag else 2
        values = _weighted_sum(self.task_weights, values, event_dims, power=2)
        # Inputs that repeat themselves along a batch were evaluated once.
        batch_shape = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        return values.expand(*batch_shape, *values.shape[-event_dims:])

    def _covariances(self, x1: Tensor, x2: Tensor, same: bool) -> Tensor:
        """Evaluates the covariance of every source: ``batch_shape x M x n1 x n2``."""
        if same and x1.requires_grad:
            return self.gps.covariance(x1)
        if not x2.requires_grad:
            x2 = collapse_batch(x2)
        if same:
            return self._covariance(self.gps.covariance, x2, self.gps.alpha)
        whitened2 = self._whitened(self.gps.whiten, x2, self.gps.alpha)
        return self.gps.covariance(x1, x2, whitened2)

    def _variance(self, x1: Tensor, x2: Tensor, same: bool) -> Tensor:
        """Evaluates ``Σ_m(x1_i, x2_i)`` of every source: ``batch_shape x M x n``."""
        if same:
            return self.gps.variance(x1)
        pairs = self.gps.covariance(x1.unsqueeze(-2), x2.unsqueeze(-2))
        return pairs[..., 0, 0].mT


class WeightedSumMean(Mean):
    r"""``Σ_m w_m μ_m(x)``, the mean of ``Σ_m w_m f_m`` under the source posteriors.

    This is ScaML-GP's prior mean, Eq. (5) of [Tighineanu2023scaml]_; with all weights one, and
    source GPs of residuals, it is the mean of a hierarchical GP.

    Args:
        gps: The source GPs, conditioned on their data.
        task_weights: The weights; every task counts once if omitted.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> gps = ConditionedGPs(X, X.sum(-1), ones.bool(), ones[:, :2], ones[:, 0], ones)
        >>> WeightedSumMean(gps, TaskWeights(num_tasks=3))(torch.rand(4, 2)).shape
        torch.Size([4])
    """

    def __init__(self, gps: ConditionedBatch, task_weights: SourceWeights | None = None) -> None:
        super().__init__()
        self.gps = gps
        self.task_weights = task_weights
        self._source_means = Cache()

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        points = x if x.requires_grad else collapse_batch(x)
        means = self._source_means(self.gps.mean, points, self.gps.alpha)
        mean = _weighted_sum(self.task_weights, means, event_dims=1, power=1)
        return mean.expand(torch.broadcast_shapes(mean.shape, x.shape[:-1]))


def _weighted_sum(
    task_weights: SourceWeights | None, values: Tensor, event_dims: int, power: int
) -> Tensor:
    """Sums ``batch_shape x M x event_shape`` values over the tasks, times powers of weights."""
    if task_weights is not None:
        weights = task_weights.weights.pow(power)
        values = weights.reshape(*weights.shape, *[1] * event_dims) * values
    return values.sum(dim=-event_dims - 1)
