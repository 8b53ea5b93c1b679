"""The units that a prior speaks in."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from botorch_transfer.outcome_transforms import usable_deviation
from botorch_transfer.pretraining.padding import PaddedTasks

OutcomeScale = Literal["per_task", "pooled", "raw"]
"""Source outcomes standardized one by one, all together, or as they were."""


def check_outcome_scale(scale: str) -> None:
    """Checks that there are such units.

    Args:
        scale: Their name.

    Raises:
        ValueError: If there are none.
    """
    if scale not in get_args(OutcomeScale):
        names = ", ".join(repr(name) for name in get_args(OutcomeScale))
        raise ValueError(f"Unknown outcome_scale {scale!r}: choose one of {names}.")


def outcome_scales(tasks: PaddedTasks, scale: OutcomeScale) -> tuple[Tensor, Tensor]:
    """Finds what to subtract from each task's outcomes, and what to divide them by.

    Args:
        tasks: The padded tasks, in the user's units.
        scale: The units wanted.

    Returns:
        Two ``M`` tensors: means and standard deviations.

    Raises:
        ValueError: If there are no such units.
    """
    check_outcome_scale(scale)
    mean, std = tasks.moments()
    if scale == "raw":
        return mean.new_zeros(mean.shape), std.new_ones(std.shape)
    if scale == "pooled":
        outcomes = tasks.Y[tasks.mask].double()
        pooled_mean = outcomes.mean()
        deviation = outcomes.std() if len(outcomes) > 1 else torch.zeros_like(pooled_mean)
        pooled_std = usable_deviation(deviation, pooled_mean)
        return pooled_mean.to(mean).repeat(len(mean)), pooled_std.to(std).repeat(len(std))
    return mean, std
