"""What every competitor is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_transfer.data import SourceData

History = Mapping[str, SourceData]

AT_ONCE = 4096
"""How many candidates are scored together, which bounds the memory."""


class Competitor(ABC):
    """A method that learns from a history and then chooses points of a new task."""

    needs_data: ClassVar[bool]
    """Whether it can't choose the very first point."""

    @classmethod
    @abstractmethod
    def build(cls, history: History, bounds: Tensor, seed: int) -> Self:
        """Learns what can be learned before the new task.

        Args:
            history: The source tasks' inputs, `n_i x d`, and outcomes, `n_i x 1`, to be maximized.
            bounds: A `2 x d` tensor of the search space's bounds.
            seed: The seed of whatever is random about it.

        Returns:
            The competitor; nothing that it does later is random.
        """

    @abstractmethod
    def acquisition(self, train_X: Tensor, train_Y: Tensor) -> AcquisitionFunction:
        """What it maximizes to choose the next point.

        Args:
            train_X: An `n x d` tensor of the new task's inputs so far.
            train_Y: An `n x 1` tensor of their outcomes, finite.

        Returns:
            A function of `b x 1 x d` inputs, differentiable, larger where the next point is
            better.
        """

    def suggest(self, train_X: Tensor, train_Y: Tensor, candidates: Tensor) -> int:
        """Chooses one of several points.

        Args:
            train_X: An `n x d` tensor of the new task's inputs so far.
            train_Y: An `n x 1` tensor of their outcomes, finite.
            candidates: An `m x d` tensor of the points to choose from.

        Returns:
            The row of the best candidate, the first of equal ones.
        """
        acquisition = self.acquisition(train_X, train_Y)
        with torch.no_grad():
            parts = candidates.unsqueeze(-2).split(AT_ONCE)
            return int(torch.cat([acquisition(part) for part in parts]).argmax())
