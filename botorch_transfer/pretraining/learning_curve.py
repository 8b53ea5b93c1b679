"""How the loss of pre-training fell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor


@dataclass
class LearningCurve:
    """Losses over the steps of pre-training.

    Args:
        loss: The training loss at the start of each step; with Adam that of a sub-sample, NaN for a
            step that was skipped.
        validation_steps: The numbers of steps after which the validation tasks were looked at.
        validation_loss: Their NLL, a mean over tasks, at these times.
        best_step: The number of steps after which the parameters were kept.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> prior = PretrainedPrior.stationary(2).fit([(X, X.sum(-1, keepdim=True))], steps=10)
        >>> len(prior.learning_curve.loss)
        10
    """

    loss: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_step: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """The curve as tensors, for files."""
        return {
            "loss": torch.tensor(self.loss, dtype=torch.double),
            "validation_steps": torch.tensor(self.validation_steps, dtype=torch.long),
            "validation_loss": torch.tensor(self.validation_loss, dtype=torch.double),
            "best_step": torch.tensor(self.best_step),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Reads what :meth:`tensors` gave."""
        lists: dict[str, Any] = {name: tensor.tolist() for name, tensor in tensors.items()}
        return cls(**lists)
