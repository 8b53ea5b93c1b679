"""``Outcome``: a column of outcomes, its direction and limit, and its model's predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.special import ndtri

from botorch_transfer.data.units import Range
from botorch_transfer.outcome_transforms import robust_limit

Goal = Literal["min", "max"]

LEVELS = (torch.arange(500, dtype=torch.double) + 0.5) / 500
"""Probabilities of equally likely quantiles, by which what has no closed form is averaged."""


@dataclass(frozen=True)
class Outcome:
    """One outcome of the target task: an objective, or what has a limit.

    Args:
        name: The column.
        sign: -1 if small outcomes are good; models predict the outcome times the sign.
        limit: The least value of the modelled outcome, for a constraint.
        noise: The column of its standard errors.
        log: Whether models predict the outcome's logarithm, times the sign.
        within: The least and the largest value that the outcome can have; predictions beyond them
            count as these. The quantiles of what is clipped are the clipped quantiles, whatever the
            model, and an outcome may really be at a bound, as a yield of 0 %.

    Example:
        >>> Outcome("loss", sign=-1.0).goal
        'min'
    """

    name: str
    sign: float
    limit: float | None = None
    noise: str | None = None
    log: bool = False
    within: Range | None = None

    @property
    def goal(self) -> Goal:
        """Whether small or large outcomes are good."""
        return "max" if self.sign > 0 else "min"

    @property
    def bound(self) -> float | None:
        """The limit in the unit of the column; ``None`` for an objective."""
        if self.limit is None:
            return None
        return math.exp(self.sign * self.limit) if self.log else self.sign * self.limit

    @property
    def columns(self) -> list[str]:
        """The columns of its numbers."""
        return [column for column in (self.name, self.noise) if column is not None]

    @property
    def is_objective(self) -> bool:
        """Whether it is to be improved, and has no limit."""
        return self.limit is None

    def predicted(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Converts a model's moments to the outcome's mean and standard deviation."""
        if self.within is not None:
            std, mean = torch.std_mean(self.quantiles(mean, variance, LEVELS), dim=-1, correction=0)
            return mean, std
        mean, variance = self.sign * mean, variance.clamp_min(0)
        if not self.log:
            return mean, variance.sqrt()
        mean = (mean + variance / 2).exp()  # of a log-normal distribution
        return mean, mean * variance.expm1().sqrt()

    def quantiles(self, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """Converts a model's moments to quantiles of the outcome.

        Args:
            mean: An ``n`` tensor.
            variance: An ``n`` tensor.
            levels: A ``k`` tensor of probabilities.

        Returns:
            An ``n x k`` tensor.
        """
        std = variance.clamp_min(0).sqrt().unsqueeze(-1)
        values = self.original(mean.unsqueeze(-1) + self.sign * std * ndtri(levels).to(std))
        return values if self.within is None else values.clamp(*self.within)

    def original(self, Y: Tensor) -> Tensor:
        """Converts modelled outcomes, which are to be maximized, to the user's."""
        return (self.sign * Y).exp() if self.log else self.sign * Y

    def no_worse_than(self, worst: float) -> Outcome:
        """Limits predictions to values no worse than a modelled outcome."""
        value = float(self.original(torch.tensor(worst, dtype=torch.double)))
        least, largest = self.within or (-math.inf, math.inf)
        return replace(
            self,
            within=(max(least, value), largest) if self.sign > 0 else (least, min(largest, value)),
        )

    def improvement(self, mean: Tensor, variance: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Computes by how much, and how likely, the outcome is better than the best one so far.

        Args:
            mean: An ``n`` tensor, of the model.
            variance: An ``n`` tensor.
            best: The best modelled outcome so far.

        Returns:
            Two ``n`` tensors: the mean of improvements in the outcome's unit, none counting as
            zero; and the probability of any.
        """
        gains = self.sign * (self.quantiles(mean, variance, LEVELS) - self.original(best))
        return gains.clamp_min(0.0).mean(dim=-1), (gains > 0).double().mean(dim=-1)

    def limited(self, values: NDArray[np.float64], depth: float = 0.0) -> NDArray[np.float64]:
        """Limits very bad outcomes of one task robustly, see :func:`robust_limit`.

        Args:
            values: An ``n`` array in the outcome's unit; NaN where there is none.
            depth: The least distance from the best outcome to the limit.

        Returns:
            An ``n`` array. Nothing changes if the sign is zero: no outcome is good or bad.
        """
        Y = torch.from_numpy(self.sign * values)
        lowest = robust_limit(Y[Y.isfinite()], depth, self.limit)
        return self.sign * np.maximum(Y.numpy(), lowest) if self.sign else values
