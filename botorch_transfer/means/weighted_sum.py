"""The mean that a weighted sum of source posteriors gives the target."""

from __future__ import annotations

import torch
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.kernels.conditioned_batch import ConditionedBatch
from botorch_transfer.kernels.input_cache import InputCache, collapse_batch
from botorch_transfer.kernels.task_weights import SourceWeights


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
        self._source_means = InputCache()

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        points = x if x.requires_grad else collapse_batch(x)
        means = self._source_means(self.gps.mean, points, self.gps.alpha)
        if self.task_weights is None:
            return means.sum(dim=-2).expand(x.shape[:-1])
        mean = (self.task_weights.weights.unsqueeze(-1) * means).sum(dim=-2)
        return mean.expand(torch.broadcast_shapes(mean.shape, x.shape[:-1]))
