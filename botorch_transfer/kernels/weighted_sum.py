"""The mean and the kernel of a weighted sum of source posteriors, and the weights.

Read it for the source part of ScaML-GP, whose weights are fitted, of the hierarchical GPs, where
every task counts once, and of the ensembles, whose weights are shares.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.kernels.cache import Cache, collapse_batch, same_inputs
from botorch_transfer.kernels.conditioned import (
    MAX_ELEMENTS,
    ConditionedBatch,
    in_parts,
)
from botorch_transfer.kernels.state import select_batch

# Not zero, because Gamma hyperpriors have no gradient there.
MIN_WEIGHT = 1e-6


class SourceWeights(Module, ABC):
    """Base class of source weights."""

    _parameter: ClassVar[str]
    """The parameter's name; its last dimension is that of the tasks."""

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the target model."""
        return getattr(self, self._parameter).shape[:-1]

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """The weights, a ``batch_shape x M`` tensor."""

    def __getitem__(self, index: Any) -> Self:
        """Selects from the batch: what an index of ``batch_shape`` selects."""
        return select_batch(self, self._parameter, index)


class TaskWeights(SourceWeights):
    r"""One non-negative weight for each source task, shared by a mean and a kernel.

    The weights are optimized as they are, not through a logarithm, so that a source task that does
    not help is dropped at once: its weight comes to rest at the lower bound, ``1e-6``.

    Args:
        num_tasks: The number of source tasks ``M``; all weights start at ``1 / M``.
        batch_shape: The batch shape of the target model.
        prior: An optional hyperprior for the weights.

    Example:
        >>> TaskWeights(4).weights
        tensor([0.2500, 0.2500, 0.2500, 0.2500], grad_fn=<...>)
    """

    _parameter = "raw_weights"
    raw_weights: Parameter
    raw_weights_constraint: GreaterThan

    def __init__(
        self,
        num_tasks: int,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        start = torch.full((*batch_shape, num_tasks), 1.0 / num_tasks)
        self.register_parameter("raw_weights", Parameter(start))
        self.register_constraint("raw_weights", GreaterThan(MIN_WEIGHT, transform=None))
        if prior is not None:
            self.register_prior("weights_prior", prior, _get_weights, _set_weights)

    @property
    def weights(self) -> Tensor:
        """The weights, a ``batch_shape x M`` tensor; none is set below the lower bound."""
        # A copy, because without a transform these would be the parameters themselves.
        return self.raw_weights_constraint.transform(self.raw_weights).clone()

    @weights.setter
    def weights(self, value: Tensor) -> None:
        value = torch.as_tensor(value).to(self.raw_weights).expand_as(self.raw_weights)
        if not bool((value >= 0).all()):
            raise ValueError("A task's weight must not be negative.")
        value = value.clamp_min(MIN_WEIGHT)
        self.initialize(raw_weights=self.raw_weights_constraint.inverse_transform(value))


def _get_weights(module: TaskWeights) -> Tensor:
    return module.weights


def _set_weights(module: TaskWeights, value: Tensor) -> None:
    # Draws from the user's own hyperprior may be negative.
    module.weights = value.clamp_min(MIN_WEIGHT)


class EnsembleWeights(SourceWeights):
    """One share for each source task, and one for the target's own model; they add up to one.

    They are computed, not fitted: no gradient reaches them. They are parameters all the same, so
    that they travel with the hyperparameters.

    Args:
        num_tasks: The number of source tasks ``M``; all shares start at ``1 / (M + 1)``.
        batch_shape: The batch shape of the target model.

    Example:
        >>> EnsembleWeights(3).weights
        tensor([0.2500, 0.2500, 0.2500])
    """

    _parameter = "shares"
    shares: Parameter

    def __init__(self, num_tasks: int, batch_shape: torch.Size = torch.Size()) -> None:  # noqa: B008
        super().__init__()
        start = torch.full((*batch_shape, num_tasks + 1), 1.0 / (num_tasks + 1))
        self.register_parameter("shares", Parameter(start, requires_grad=False))

    @property
    def weights(self) -> Tensor:
        """The source tasks' shares, a ``batch_shape x M`` tensor."""
        return self.shares[..., :-1]

    @property
    def own(self) -> Tensor:
        """The share of the target's own model, a ``batch_shape`` tensor."""
        return self.shares[..., -1]

    def set(self, shares: Tensor) -> None:
        """Replaces the shares.

        Args:
            shares: A ``batch_shape x (M + 1)`` tensor of non-negative numbers, the target's own
                last; it is normalized.
        """
        self.shares.data = (shares / shares.sum(dim=-1, keepdim=True)).to(self.shares)


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
        # Inputs that repeat themselves along a batch are evaluated once.
        batch_shape = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        if diag:
            values = self._sum(self._variance(x1, x2, same), event_dims=1)
            return values.expand(*batch_shape, *values.shape[-1:])
        if not x2.requires_grad:
            x2 = collapse_batch(x2)
        x1 = x2 if same else x1
        width = self.gps.lengthscale.shape[0] * x2.shape[-2] * max(1, x1.shape[:-2].numel())
        if width * x1.shape[-2] > MAX_ELEMENTS:
            values = self._large_sum(x1, x2, same, width)
        else:
            values = self._sum(self._covariances(x1, x2, same), event_dims=2)
        return values.expand(*batch_shape, *values.shape[-2:])

    def _sum(self, values: Tensor, event_dims: int) -> Tensor:
        return _weighted_sum(self.task_weights, values, event_dims, power=2)

    def source_covariances(self, x: Tensor) -> Tensor:
        """Evaluates every source's covariance, and remembers it.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x M x n x n`` tensor, without the batch if all inputs are the same.
        """
        if x.requires_grad:
            return self.gps.covariance(x)
        return self._covariance(self.gps.covariance, collapse_batch(x), self.gps.alpha)

    def _covariances(self, x1: Tensor, x2: Tensor, same: bool) -> Tensor:
        """Evaluates the covariance of every source: ``batch_shape x M x n1 x n2``."""
        if same:
            return self.source_covariances(x1)
        return self.gps.covariance(x1, x2, self._whitened(self.gps.whiten, x2, self.gps.alpha))

    def _large_sum(self, x1: Tensor, x2: Tensor, same: bool, width: int) -> Tensor:
        """Evaluates some rows of all sources after the other, so that memory is that of the sum."""
        whitened = self._whitened(self.gps.whiten, x2, self.gps.alpha)
        weights = whitened.new_ones(whitened.shape[-3])
        if self.task_weights is not None:
            weights = self.task_weights.weights.square()

        def rows(part: Tensor, start: int = 0) -> Tensor:
            others = x2[..., start:, :], whitened[..., start:]
            return self.gps.weighted_covariance(weights, part, *others)

        if not same or torch.is_grad_enabled():
            return in_parts(rows, x1, width, dim=-2)
        # The covariance is symmetric: the upper triangle will do.
        n, size = x1.shape[-2], max(1, MAX_ELEMENTS // width)
        upper = [rows(x1[..., start : start + size, :], start) for start in range(0, n, size)]
        return _symmetric(upper)

    def _variance(self, x1: Tensor, x2: Tensor, same: bool) -> Tensor:
        """Evaluates ``Σ_m(x1_i, x2_i)`` of every source: ``batch_shape x M x n``."""
        if same:
            return self.gps.variance(x1)
        pairs = self.gps.covariance(x1.unsqueeze(-2), x2.unsqueeze(-2))
        return pairs[..., 0, 0].mT


def _symmetric(upper: list[Tensor]) -> Tensor:
    """Makes a symmetric matrix of its upper triangle: blocks of rows, each from its diagonal on."""
    n = upper[0].shape[-1]
    whole = upper[0].new_empty(*upper[0].shape[:-2], n, n)
    for rows in upper:
        start, stop = n - rows.shape[-1], n - rows.shape[-1] + rows.shape[-2]
        whole[..., start:stop, start:] = rows
        whole[..., start:, start:stop] = rows.mT
    return whole


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
        mean = _weighted_sum(self.task_weights, self.source_means(x), event_dims=1, power=1)
        return mean.expand(torch.broadcast_shapes(mean.shape, x.shape[:-1]))

    def source_means(self, x: Tensor) -> Tensor:
        """Evaluates every source's mean, and remembers it.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x M x n`` tensor, without the batch if all inputs are the same.
        """
        points = x if x.requires_grad else collapse_batch(x)
        return self._source_means(self.gps.mean, points, self.gps.alpha)


def _weighted_sum(
    task_weights: SourceWeights | None, values: Tensor, event_dims: int, power: int
) -> Tensor:
    """Sums ``batch_shape x M x event_shape`` values over the tasks, times powers of weights."""
    if task_weights is not None:
        weights = task_weights.weights.pow(power)
        values = weights.reshape(*weights.shape, *[1] * event_dims) * values
    return values.sum(dim=-event_dims - 1)
