"""Mean, kernel and weights of a weighted sum of source posteriors.

The prior of a target model can include the sum ``Σ_m w_m f_m``. ``f_m`` is a random function with
the posterior distribution of source GP ``m``, and ``w_m`` is its weight. Three methods use this
sum. ScaML-GP [Tighineanu2023scaml]_ fits the weights. A hierarchical GP has only one source GP,
with the weight one. In an ensemble, the weights of the source tasks and of the target's own model
add up to one.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.means import Mean
from gpytorch.module import Module
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.gp.conditioned import (
    Conditioned,
    ConditionedBatch,
    ConditionedGPs,
    in_parts,
    max_elements,
)
from botorch_transfer.gp.expansion import MAX_NUMBERS, Expansion, Part, PriorKernel
from botorch_transfer.gp.paths import SourcePath
from botorch_transfer.gp.state import Cache, collapse_batch, same_inputs, select_batch

# Lower bound of the weights. The bound is positive, because the log density of a Gamma hyperprior
# has no gradient at zero.
MIN_WEIGHT = 1e-6


class SourceWeights(Module, ABC):
    """Base class for the weights of source tasks in the prior of a target model.

    A subclass has PyTorch parameters, and computes the weights from these parameters. The shape of
    each parameter is the batch shape of the target model, followed by one more dimension.
    """

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the target model."""
        return self.weights.shape[:-1]

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """The weight of each source posterior in the sum, a ``batch_shape x M`` tensor."""

    @property
    def all_weights(self) -> Tensor:
        """The weights of all ``M`` source tasks; zero for tasks that the weighted sum omits."""
        return self.weights

    def selected(self, gps: ConditionedBatch) -> tuple[ConditionedBatch, Tensor]:
        """Returns the source GPs in the weighted sum, and their weights.

        Args:
            gps: All source GPs.

        Returns:
            The ``S`` GPs in the sum, and a ``batch_shape x S`` tensor of their weights. In this
            base class, the sum includes all GPs.
        """
        return gps, self.weights

    __getitem__ = select_batch


class TaskWeights(SourceWeights):
    r"""Non-negative weights of source tasks, fitted as hyperparameters of the target model.

    The prior mean and the prior kernel of the target model use the same weights. The weights are
    optimized without a logarithmic transform. The weight of an irrelevant source task therefore
    reaches the lower bound, ``1e-6``, in a few steps.

    Use :meth:`select` to restrict the weighted sum to ``S`` tasks. The GPs of the other tasks are
    not evaluated, and the weights of the other tasks are not fitted. The ``state_dict`` contains
    the mask of the selected tasks and the parameters of all ``M`` tasks.

    Args:
        num_tasks: The number of source tasks ``M``; all weights start at ``1 / M``.
        batch_shape: The batch shape of the target model.
        prior: An optional hyperprior for the weights.

    Example:
        >>> TaskWeights(4).weights
        tensor([0.2500, 0.2500, 0.2500, 0.2500], grad_fn=<...>)
    """

    raw_weights: Parameter
    raw_weights_constraint: GreaterThan
    #: Mask of the selected tasks, an ``M`` boolean tensor.
    is_selected: Tensor
    #: Indices of the selected tasks, an ``S`` tensor. The indices are stored, because computing
    #: them from ``is_selected`` waits for the GPU.
    tasks: Tensor

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
        self.num_tasks = num_tasks
        self.register_buffer("is_selected", torch.ones(num_tasks, dtype=torch.bool))
        self.register_buffer("tasks", torch.arange(num_tasks), persistent=False)
        self._selected = Cache(size=1)

    @property
    def weights(self) -> Tensor:
        """The weights of the selected source tasks, a ``batch_shape x S`` tensor."""
        # Indexing makes a copy. Without a copy, the constraint would return the parameter itself.
        return self.raw_weights_constraint.transform(self.raw_weights[..., self.tasks])

    @weights.setter
    def weights(self, value: Tensor) -> None:
        present = self.weights.detach()
        value = torch.as_tensor(value).to(present).expand_as(present)
        if not bool((value >= 0).all()):
            raise ValueError("A task's weight must not be negative.")
        value = self.raw_weights_constraint.inverse_transform(value.clamp_min(MIN_WEIGHT))
        raw = self.raw_weights.detach().clone()
        raw[..., self.tasks] = value
        self.initialize(raw_weights=raw)

    @property
    def all_weights(self) -> Tensor:
        """The weights of all ``M`` source tasks; zero for unselected tasks."""
        return self.raw_weights_constraint.transform(self.raw_weights) * self.is_selected

    def select(self, tasks: Tensor) -> None:
        """Restricts the weighted sum to ``S`` source tasks.

        If all ``M`` weights are equal, as in a new object, each selected task gets the weight
        ``1 / S``. Otherwise, a task that was selected before the call keeps its weight, and any
        other selected task gets the weight ``1 / S``.

        Args:
            tasks: The ``S`` indices of the tasks, ascending.
        """
        full = self.all_weights.detach()
        keeps = (full != 0) & (full != full[..., :1]).any()
        self.raw_weights.data.copy_(torch.where(keeps, full, 1 / len(tasks)))
        self.is_selected = torch.zeros_like(self.is_selected).index_fill(0, tasks, True)
        self.tasks = tasks

    def selected(self, gps: ConditionedBatch) -> tuple[ConditionedBatch, Tensor]:
        """Returns the source GPs of the selected tasks, and the weights of these tasks.

        The selected GPs of the last call are cached.

        Args:
            gps: All source GPs.

        Returns:
            The ``S`` GPs, and a ``batch_shape x S`` tensor of their weights.
        """
        if len(self.tasks) == self.num_tasks:
            return gps, self.weights
        return self._selected(cast(ConditionedGPs, gps).select, self.tasks, gps.alpha), self.weights

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.tasks = self.is_selected.nonzero().squeeze(-1)


def _get_weights(module: TaskWeights) -> Tensor:
    return module.weights


def _set_weights(module: TaskWeights, value: Tensor) -> None:
    # Samples from a user's hyperprior may be negative.
    module.weights = value.clamp_min(MIN_WEIGHT)


class EnsembleWeights(SourceWeights):
    """Weights, adding up to one, of the source tasks and of the target's own model.

    These weights are called *shares*. The ensemble computes the shares, and passes them to
    :meth:`set`. The shares are a PyTorch parameter, so they are saved and copied with the
    hyperparameters. The parameter requires no gradient, so optimizers do not change the shares.

    Args:
        num_tasks: The number of source tasks ``M``; all shares start at ``1 / (M + 1)``.
        batch_shape: The batch shape of the target model.

    Example:
        >>> EnsembleWeights(3).weights
        tensor([0.2500, 0.2500, 0.2500])
    """

    shares: Parameter

    def __init__(self, num_tasks: int, batch_shape: torch.Size = torch.Size()) -> None:  # noqa: B008
        super().__init__()
        start = torch.full((*batch_shape, num_tasks + 1), 1.0 / (num_tasks + 1))
        self.register_parameter("shares", Parameter(start, requires_grad=False))

    @property
    def weights(self) -> Tensor:
        """The weights of the source tasks, a ``batch_shape x M`` tensor."""
        return self.shares[..., :-1]

    @property
    def own(self) -> Tensor:
        """The weight of the target's own model, a ``batch_shape`` tensor."""
        return self.shares[..., -1]

    def set(self, shares: Tensor) -> None:
        """Sets the weights of the source tasks and of the target's own model.

        Args:
            shares: A ``batch_shape x (M + 1)`` tensor of non-negative numbers: the weights of the
                source tasks, then the weight of the target's own model. The numbers are divided by
                their sum.
        """
        self.shares.data = (shares / shares.sum(dim=-1, keepdim=True)).to(self.shares)


class WeightedSumKernel(PriorKernel):
    r"""Posterior covariance of a weighted sum of source GPs: ``Σ_m w_m² k_m(x, x')``.

    ``w_m`` is the weight of source GP ``m``, and ``k_m(x, x')`` is its posterior covariance.
    Use this kernel with :class:`WeightedSumMean` in the prior of a target model. ScaML-GP also adds
    a residual kernel, see Eq. (6) of [Tighineanu2023scaml]_.

    Args:
        gps: The source GPs, conditioned on their data.
        task_weights: The weights; all weights are one if omitted.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> data = X, X.sum(-1), ones.bool()
        >>> gps = ConditionedGPs.from_data(*data, ones[:, :2], ones[:, 0], ones)
        >>> WeightedSumKernel(gps, TaskWeights(num_tasks=3))(torch.rand(4, 2)).shape
        torch.Size([4, 4])
    """

    def __init__(self, gps: ConditionedBatch, task_weights: SourceWeights | None = None) -> None:
        batch_shape = torch.Size() if task_weights is None else task_weights.batch_shape
        super().__init__(batch_shape=batch_shape)
        self.gps = gps
        self.task_weights = task_weights
        self._whitened = Cache()
        self._covariance = Cache()

    def __getitem__(self, index: Any) -> WeightedSumKernel:
        """Returns the kernel for the target models that ``index`` selects from a batch."""
        if self.task_weights is None or not len(self.batch_shape):
            return self
        return WeightedSumKernel(self.gps, self.task_weights[index])

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return only the diagonal, ``k(x1_i, x2_i)``.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        same = same_inputs(x1, x2)
        if diag and not same:
            return self.forward(x1, x2).diagonal(dim1=-2, dim2=-1)
        # If all batches have the same inputs, the source GPs are evaluated only once.
        batch_shape = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        gps, weights = _selected(self.gps, self.task_weights)
        if diag:
            values = _weighted_sum(weights, gps.variance(x1), event_dims=1, power=2)
            return values.expand(*batch_shape, *values.shape[-1:])
        x2 = collapse_batch(x2)
        x1 = x2 if same else x1
        width = gps.lengthscale.shape[0] * x2.shape[-2] * max(1, x1.shape[:-2].numel())
        if same and (x1.shape[-2] == 1 or width * x1.shape[-2] <= max_elements(x1)):
            values = _weighted_sum(weights, self.source_covariances(x1), event_dims=2, power=2)
        else:
            whitened = self._whitened(gps.whiten, x2, gps.alpha)

            def of_rows(rows: Tensor) -> Tensor:
                covariances = gps.covariance(rows, x2, whitened)
                return _weighted_sum(weights, covariances, event_dims=2, power=2)

            values = in_parts(of_rows, x1, width, dim=-2)
        return values.expand(*batch_shape, *values.shape[-2:])

    def draw(
        self, sample_shape: torch.Size, batch_shape: torch.Size, num_features: int, **kwargs: Any
    ) -> SourcePath:
        """Draws sample paths with mean zero and this kernel, see :meth:`.PriorKernel.draw`."""
        selected = _selected(self.gps, self.task_weights)
        return SourcePath(*selected, sample_shape + batch_shape, num_features)

    def expand(self, mean: Mean, rest: Expansion, T: Tensor) -> Expansion | None:
        """Expands the prior with this kernel and ``mean``, see :meth:`.PriorKernel.expand`.

        Returns ``None`` in three cases: ``mean`` does not have the same weights and source GPs as
        this kernel, the source tasks are not independent, or the result would need too much memory.
        """
        gps, weights = _selected(self.gps, self.task_weights)
        is_ours = isinstance(mean, WeightedSumMean) and mean.task_weights is self.task_weights
        if not is_ours or mean.gps is not self.gps or not isinstance(gps, ConditionedGPs):
            return None
        weights = weights.double()
        size = gps.points.shape[-2] + len(T)
        if len(gps.points) * size * (2 + size) > MAX_NUMBERS:
            return None
        constants = rest.constants.clone()
        constants[0] = weights @ gps.prior_mean
        constants[1] += weights.square() @ gps.outputscale
        return Expansion([*rest.parts, Part.of_sources(gps, weights, T)], constants)

    def source_covariances(self, x: Tensor) -> Tensor:
        """Evaluates the posterior covariance of each selected source GP. Results are cached.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x S x n x n`` tensor, or an ``S x n x n`` tensor if all elements of the
            batch have the same inputs.
        """
        gps, _ = _selected(self.gps, self.task_weights)
        return self._covariance(gps.covariance, collapse_batch(x), gps.alpha)


class SourceMean(Mean, ABC):
    """Base class for prior means that are computed from source posteriors."""

    @abstractmethod
    def parts(self, x: Tensor) -> Tensor:
        """Evaluates the contribution of each source task to the prior mean.

        Args:
            x: An ``n x d`` tensor of inputs.

        Returns:
            An ``M x n`` tensor. All values are zero if the mean is not a sum over source tasks.
        """


class WeightedSumMean(SourceMean):
    r"""Posterior mean of a weighted sum of source GPs: ``Σ_m w_m μ_m(x)``.

    ``w_m`` is the weight of source GP ``m``, and ``μ_m(x)`` is its posterior mean. This is the
    prior mean of ScaML-GP, Eq. (6) of [Tighineanu2023scaml]_. Hierarchical GPs use this mean with
    only one source GP, which has the weight one.

    Args:
        gps: The source GPs, conditioned on their data.
        task_weights: The weights; all weights are one if omitted.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> data = X, X.sum(-1), ones.bool()
        >>> gps = ConditionedGPs.from_data(*data, ones[:, :2], ones[:, 0], ones)
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
        _, weights = _selected(self.gps, self.task_weights)
        mean = _weighted_sum(weights, self.source_means(x), event_dims=1, power=1)
        return mean.expand(torch.broadcast_shapes(mean.shape, x.shape[:-1]))

    @property
    def all_weights(self) -> Tensor:
        """The weights of all source tasks, a ``batch_shape x M`` tensor."""
        if self.task_weights is None:
            return self.gps.alpha.new_ones(self.gps.num_tasks)
        return self.task_weights.all_weights

    def parts(self, x: Tensor) -> Tensor:
        """Evaluates each source task's term of the mean.

        Args:
            x: An ``n x d`` tensor of inputs.

        Returns:
            An ``M x n`` tensor. All values are zero if the source tasks are not independent.
        """
        if not isinstance(self.gps, ConditionedGPs):
            return x.new_zeros(self.gps.num_tasks, len(x))
        return self.all_weights.unsqueeze(-1) * self.gps.mean(x)

    def source_means(self, x: Tensor) -> Tensor:
        """Evaluates the posterior mean of each selected source GP. Results are cached.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x S x n`` tensor, or an ``S x n`` tensor if all elements of the batch
            have the same inputs.
        """
        gps, _ = _selected(self.gps, self.task_weights)
        return self._source_means(gps.mean, collapse_batch(x), gps.alpha)


def sharing_inputs(mean: Mean, x: Tensor) -> AbstractContextManager[None]:
    """Returns a context in which a model's prior mean and covariance share kernel evaluations.

    Within the context, the kernel between ``x`` and the source data is evaluated only once.

    Args:
        mean: The model's prior mean. For a mean without source GPs, the context has no effect.
        x: A ``batch_shape x n x d`` tensor of inputs.

    Returns:
        The context manager, see :meth:`.Conditioned.sharing`.
    """
    for part in mean.modules():
        if isinstance(part, WeightedSumMean):
            return _selected(part.gps, part.task_weights)[0].sharing(x)
        if isinstance(part, Conditioned):
            return part.sharing(x)
    return nullcontext()


def _selected(
    gps: ConditionedBatch, task_weights: SourceWeights | None
) -> tuple[ConditionedBatch, Tensor]:
    """Returns the selected source GPs and their weights.

    If ``task_weights`` is ``None``, all GPs are selected, and all weights are one.
    """
    if task_weights is None:
        return gps, gps.alpha.new_ones(len(gps.alpha))
    return task_weights.selected(gps)


def _weighted_sum(weights: Tensor, values: Tensor, event_dims: int, power: int) -> Tensor:
    """Computes ``Σ_s w_s^power v_s`` for values ``v`` of shape ``batch_shape x S x event_shape``.

    ``event_dims`` is the number of dimensions of ``event_shape``.
    """
    weights = weights.pow(power).to(values)
    values = weights.reshape(*weights.shape, *[1] * event_dims) * values
    return values.sum(dim=-event_dims - 1)
