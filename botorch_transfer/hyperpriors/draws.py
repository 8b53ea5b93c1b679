"""Hyperparameters drawn from a hyperprior."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class HyperparameterDraws:
    """``R`` draws of the hyperparameters of a GP with ``d`` inputs.

    Args:
        constant: An ``R`` tensor of constant means.
        lengthscale: An ``R x d`` tensor.
        outputscale: An ``R`` tensor of signal variances.
        noise: An ``R`` tensor of noise variances.
    """

    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor

    def __len__(self) -> int:
        return len(self.constant)

    def __getitem__(self, index: Any) -> HyperparameterDraws:
        """Selects draws."""
        return HyperparameterDraws(*(getattr(self, part.name)[index] for part in fields(self)))

    def to(self, other: Tensor) -> HyperparameterDraws:
        """The same draws in the dtype and on the device of a tensor."""
        return HyperparameterDraws(*(getattr(self, part.name).to(other) for part in fields(self)))
