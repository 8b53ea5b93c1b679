"""``Outcome``: one column of outcomes and its goal; converts predictions to the column's unit."""

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

#: Probabilities of 500 quantiles. The average of these quantiles approximates the mean of a
#: distribution whose mean has no closed form.
LEVELS = (torch.arange(500, dtype=torch.double) + 0.5) / 500


@dataclass(frozen=True)
class Outcome:
    """An outcome of the target task, which is an objective or a constrained outcome.

    The *modelled outcome* is the number that models predict: the outcome or its logarithm, times
    the sign. Models maximize the modelled outcome.

    Args:
        name: The column of the outcome.
        sign: 1 if large outcomes are good, -1 if small outcomes are good.
        limit: The least feasible value of the modelled outcome; ``None`` for an objective.
        noise: The column of standard errors; ``None`` if there is none.
        log: Whether models predict the outcome's logarithm.
        within: The least and the largest possible value of the outcome, such as 0 and 100 for a
            yield in per cent. The quantiles of predictions are clipped to this range. Means and
            standard deviations are computed from the clipped quantiles.

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
        """``"min"`` if small outcomes are good, ``"max"`` if large outcomes are good."""
        return "max" if self.sign > 0 else "min"

    @property
    def bound(self) -> float | None:
        """Limit of a constrained outcome, in the outcome's unit; ``None`` for an objective."""
        if self.limit is None:
            return None
        return math.exp(self.sign * self.limit) if self.log else self.sign * self.limit

    @property
    def columns(self) -> list[str]:
        """Names of the outcome's column and of its column of standard errors, if there is one."""
        return [column for column in (self.name, self.noise) if column is not None]

    @property
    def is_objective(self) -> bool:
        """Whether the outcome is an objective, not a constrained outcome."""
        return self.limit is None

    def predicted(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Converts a model's means and variances to the outcome's means and standard deviations."""
        if self.within is not None:
            std, mean = torch.std_mean(self.quantiles(mean, variance, LEVELS), dim=-1, correction=0)
            return mean, std
        mean, variance = self.sign * mean, variance.clamp_min(0)
        if not self.log:
            return mean, variance.sqrt()
        mean = (mean + variance / 2).exp()  # of a log-normal distribution
        return mean, mean * variance.expm1().sqrt()

    def quantiles(self, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """Converts a model's means and variances to quantiles in the outcome's unit.

        Args:
            mean: An ``n`` tensor of means of the modelled outcome.
            variance: An ``n`` tensor of variances of the modelled outcome.
            levels: A ``k`` tensor of probabilities.

        Returns:
            An ``n x k`` tensor.
        """
        std = variance.clamp_min(0).sqrt().unsqueeze(-1)
        values = self.original(mean.unsqueeze(-1) + self.sign * std * ndtri(levels).to(std))
        return values if self.within is None else values.clamp(*self.within)

    def original(self, Y: Tensor) -> Tensor:
        """Converts modelled outcomes, which models maximize, to the unit and sign of the column."""
        return (self.sign * Y).exp() if self.log else self.sign * Y

    def no_worse_than(self, worst: float) -> Outcome:
        """Returns a copy whose predictions are never worse than the modelled outcome ``worst``."""
        value = float(self.original(torch.tensor(worst, dtype=torch.double)))
        least, largest = self.within or (-math.inf, math.inf)
        within = (max(least, value), largest) if self.sign > 0 else (least, min(largest, value))
        return replace(self, within=within)

    def improvement(self, mean: Tensor, variance: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the expected improvement over ``best``, and the probability of improvement.

        Args:
            mean: An ``n`` tensor of means of the modelled outcome.
            variance: An ``n`` tensor of variances of the modelled outcome.
            best: The best modelled outcome so far, a tensor with one element.

        Returns:
            Two ``n`` tensors: the expected improvement in the outcome's unit, and the probability
            of improvement.
        """
        gains = self.sign * (self.quantiles(mean, variance, LEVELS) - self.original(best))
        return gains.clamp_min(0.0).mean(dim=-1), (gains > 0).double().mean(dim=-1)

    def limited(self, values: NDArray[np.float64], depth: float = 0.0) -> NDArray[np.float64]:
        """Clips very bad outcomes of one task at a limit, see :func:`robust_limit`.

        Args:
            values: An ``n`` array in the outcome's unit; NaN where an outcome is missing.
            depth: The minimum distance between the best outcome and the limit.

        Returns:
            An ``n`` array. If ``sign`` is zero, the values do not change.
        """
        Y = torch.from_numpy(self.sign * values)
        lowest = robust_limit(Y[Y.isfinite()], depth, self.limit)
        return self.sign * np.maximum(Y.numpy(), lowest) if self.sign else values
