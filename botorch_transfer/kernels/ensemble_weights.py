"""The shares that the models of an ensemble have in its prediction."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.kernels.task_weights import SourceWeights


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

    shares: Parameter

    def __init__(
        self,
        num_tasks: int,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        super().__init__()
        start = torch.full((*batch_shape, num_tasks + 1), 1.0 / (num_tasks + 1))
        self.register_parameter("shares", Parameter(start, requires_grad=False))

    def __getitem__(self, index: Any) -> Self:
        """Selects from the batch: what an index of ``batch_shape`` selects."""
        index = index if isinstance(index, tuple) else (index,)
        twin = deepcopy(self)
        twin.shares = Parameter(self.shares.detach()[(*index, slice(None))], requires_grad=False)
        return twin

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the target model."""
        return self.shares.shape[:-1]

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
