"""Training for as long as it helps tasks that were held out, and then on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.pretraining.gp_parts import GPParts
from botorch_transfer.pretraining.gradient_fit import GradientFit
from botorch_transfer.pretraining.learning_curve import LearningCurve
from botorch_transfer.pretraining.pretraining_options import PretrainingOptions
from botorch_transfer.pretraining.source_loss import SourceLoss, TaskNLL
from botorch_transfer.pretraining.training_tasks import TrainingTasks

Groups = Sequence[Sequence[int]] | None
"""Given groups of tasks with matching inputs."""


def fit_as_long_as_it_helps(
    parts: GPParts,
    tasks: TrainingTasks,
    share: float,
    groups: Groups,
    loss: Callable[[TrainingTasks, Groups], SourceLoss],
    options: PretrainingOptions,
    key: str,
) -> LearningCurve:
    """Finds the number of steps on a part of the tasks, and takes as many on all of them.

    Args:
        parts: The GP, changed in place.
        tasks: The source tasks.
        share: The share of tasks that are held out to find the number of steps.
        groups: Given groups of tasks with matching inputs.
        loss: Builds the loss of tasks.
        options: How to optimize.
        key: What identifies the run, for its checkpoints.

    Returns:
        The losses on all tasks, those of the held-out ones while they were, and the number of steps
        found.

    Raises:
        InputDataError: If there are too few tasks to hold one out.
        ModelFittingError: If the loss cannot be evaluated, step after step.
        ValueError: If there is a checkpoint of another run.
    """
    kept, held_out = split(tasks.num_tasks, share, options.seed)
    training = tasks.subset(kept)
    held = tasks.subset(held_out).tasks
    trial = GradientFit(
        deepcopy(parts),
        loss(training, renumbered(groups, kept)),
        TaskNLL(held),
        replace(options, checkpoint=_beside(options.checkpoint)),
        f"{key}-held-out",
    ).run()
    curve = GradientFit(parts, loss(tasks, groups), None, options, key, trial.best_step).run()
    return replace(
        curve,
        validation_steps=trial.validation_steps,
        validation_loss=trial.validation_loss,
    )


def split(num_tasks: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Draws tasks to hold out.

    Args:
        num_tasks: The number of tasks.
        share: The share to hold out; one task at least.
        seed: The seed.

    Returns:
        The numbers of the tasks that are kept and of those held out, in order.

    Raises:
        InputDataError: If this leaves fewer than two tasks.
        ValueError: If the share is none.

    Example:
        >>> kept, held_out = split(8, 0.25, seed=0)
        >>> len(kept), len(held_out)
        (6, 2)
    """
    if not 0 < share < 1:
        raise ValueError(f"hold_out={share} must lie between 0 and 1.")
    count = max(1, round(share * num_tasks))
    if num_tasks - count < 2:
        raise InputDataError(
            f"hold_out={share} leaves {num_tasks - count} of {num_tasks} source tasks to train on: "
            "leave it out, and choose the number of steps."
        )
    order = torch.randperm(num_tasks, generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(order[count:]), sorted(order[:count])


def renumbered(groups: Groups, kept: Sequence[int]) -> Groups:
    """Says which groups there are among some of the tasks, by their new numbers.

    Args:
        groups: The groups, if any are given.
        kept: The numbers of the tasks.

    Returns:
        The groups of two tasks or more.

    Raises:
        InputDataError: If none is left.
    """
    if groups is None:
        return None
    number = {task: index for index, task in enumerate(kept)}
    among = [[number[task] for task in group if task in number] for group in groups]
    found = [group for group in among if len(group) > 1]
    if not found:
        raise InputDataError(
            "hold_out leaves no two tasks of a group together: leave it out, or the groups, or "
            "take another seed."
        )
    return found


def _beside(checkpoint: object) -> Path | None:
    return None if checkpoint is None else Path(f"{checkpoint}.held-out")
