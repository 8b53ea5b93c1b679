"""Do the source tasks predict one another? If not, they are unlikely to predict the target."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.prior import Observations

MIN_TASKS = 5
"""With fewer tasks, a single odd one makes all others seem to disagree."""

MAX_TASKS, MAX_POINTS = 32, 32
"""How many tasks are compared, and at how many points each; more do not change the result."""


def agreement_of(gps: ConditionedGPs, data: Observations) -> Tensor:
    """Correlates each task's outcomes with the mean prediction of all others by rank."""
    Y = data.Y.cpu()
    return torch.tensor(
        [_rank_correlation(Y[rows], others) for _, rows, others in left_out_of(gps, data)]
    )


def left_out_of(gps: ConditionedGPs, data: Observations) -> list[tuple[int, Tensor, Tensor]]:
    """Each task that is compared, some of its rows, and the others' mean prediction there."""
    tasks = _compared(gps)
    if len(tasks) == 1:
        return []
    task_of_row = data.task.cpu()
    rows = [(task_of_row == task).nonzero().squeeze(-1) for task in tasks]
    rows = [own[evenly_spaced(len(own), MAX_POINTS)] for own in rows]
    means = gps.select(tasks).mean(data.X[torch.cat(rows).to(data.X.device)]).cpu()
    parts = means.split([len(own) for own in rows], dim=-1)
    others = [(m.sum(dim=0) - m[place]) / (len(tasks) - 1) for place, m in enumerate(parts)]
    return list(zip(tasks, rows, others, strict=True))


def tasks_agree(correlations: Tensor, significance: float = 2.5) -> bool:
    """Judges whether tasks predict one another.

    Args:
        correlations: The result of :attr:`SourceGPs.agreement`.
        significance: How many standard errors above zero the mean correlation has to be.

    Returns:
        Whether they do; ``True`` for fewer than ``MIN_TASKS`` tasks, which is too few to judge.

    Example:
        >>> tasks_agree(torch.tensor([0.5, 0.7, 0.6, 0.9, 0.6]))
        True
        >>> tasks_agree(torch.tensor([0.5, -0.7, 0.3, 0.1, -0.2]))
        False
    """
    if len(correlations) < MIN_TASKS or significance == -math.inf:
        return True
    error = float(correlations.std()) / math.sqrt(len(correlations))
    return float(correlations.mean()) > significance * error


def _compared(gps: ConditionedGPs) -> list[int]:
    """The tasks to compare: all, or a selection that does not depend on their order."""
    if gps.num_tasks <= MAX_TASKS:
        return list(range(gps.num_tasks))
    by_content = (gps.points.sum(dim=-1) * gps.mask).sum(dim=-1).argsort()
    return by_content[evenly_spaced(gps.num_tasks, MAX_TASKS)].tolist()


def _rank_correlation(left: Tensor, right: Tensor) -> float:
    from scipy.stats import spearmanr  # slow to import: only where it is needed

    if min(float(left.std(correction=0)), float(right.std(correction=0))) < 1e-12:
        return 0.0
    return float(spearmanr(left.cpu().numpy(), right.cpu().numpy()).statistic)
