"""The weights of source tasks: fitted ones of ScaML-GP, and the shares of an ensemble.

Read it for what :mod:`~botorch_transfer.kernels.weighted_sum` weighs source posteriors with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.kernels.conditioned_batch import select_batch

# Not zero, because Gamma hyperpriors have no gradient there.
MIN_WEIGHT = 1e-6


class SourceWeights(Module, ABC):
    """Weights of source tasks, whether they are fitted or computed."""

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
