"""Agreement of source tasks: do they predict one another, how well, and which is most typical?

Read this for the evidence for a history before there is any target point, which
:class:`~.models.GuardedTransferGP` asks for, for how far a target may be from its sources, and for
``order="relatedness"`` of :class:`SourceHierarchy`.
"""

from __future__ import annotations

import math

import torch
from scipy.stats import rankdata, spearmanr
from torch import Tensor

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.fit import MAPOptions, fit_map
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.gp.tasks import OutcomeScale, PaddedTasks, target_transform

MIN_TASKS = 5
"""With fewer tasks, a single odd one makes all others seem to disagree."""

MAX_TASKS, MAX_POINTS = 32, 32
"""How many tasks are compared, and at how many points each; more do not change the result."""


@torch.no_grad()
def source_agreement(gps: ConditionedGPs) -> Tensor:
    """Correlates each task's outcomes with the mean prediction of all other tasks.

    A target without data is treated as one more task. If the sources do not predict each other,
    they are unlikely to predict the target.

    Args:
        gps: The conditioned GPs of the source tasks, standardized.

    Returns:
        A tensor of rank correlations (Spearman's), one for each of at most ``MAX_TASKS`` tasks;
        zero where outcomes or predictions are constant. Empty if there is one task only.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> Y = X.sum(-1, keepdim=True)
        >>> source_agreement(SourceGPs.fit([(X, Y), (X, Y), (X, -Y)]).gps)
        tensor([...
    """
    compared = _left_out(gps)
    Y = gps.train_Y.cpu()
    return torch.tensor(
        [_rank_correlation(Y[task, rows], others) for task, rows, others in compared]
    )


@torch.no_grad()
def source_differences(
    gps: ConditionedGPs, outcomes: Tensor, outcome_scale: OutcomeScale
) -> Tensor:
    """Compares each task's outcomes with the mean prediction of all other tasks.

    A target without data is treated as one more task: the result says how far its outcomes may be
    from what its sources predict. The outcomes of the task that is left out are scaled as those of
    a target are.

    Args:
        gps: The conditioned GPs of the source tasks.
        outcomes: An ``M x N`` tensor of the tasks' outcomes in the user's units, padded as those of
            ``gps``.
        outcome_scale: How they were scaled.

    Returns:
        A tensor of mean squared differences, one for each of at most ``MAX_TASKS`` tasks. Empty if
        there is one task only.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> Y = X.sum(-1, keepdim=True)
        >>> prior = SourceGPs.fit([(X, Y), (X, Y), (X, -Y)], outcome_scale="raw")
        >>> source_differences(prior.gps, prior.gps.train_Y, "raw")
        tensor([...
    """
    compared, found = _left_out(gps), []
    # On the host, as what follows is small: a device would be waited for at each task.
    outcomes, mask = outcomes.cpu(), gps.mask.cpu()
    known = {task: outcomes[task, mask[task]] for task, _, _ in compared}
    for left_out, rows, others in compared:
        rest = torch.cat([Y for task, Y in known.items() if task != left_out])
        transform = target_transform(outcome_scale, rest, torch.Size())
        Y = outcomes[left_out, rows].unsqueeze(-1)
        if transform is not None:
            transform(Y[:0])
            Y, _ = transform.eval()(Y)
        found.append((Y.squeeze(-1) - others).square().mean())
    return torch.stack(found) if found else outcomes.new_zeros(0)


def _left_out(gps: ConditionedGPs) -> list[tuple[int, Tensor, Tensor]]:
    """Each task that is compared, some of its rows, and the others' mean prediction there."""
    tasks = _compared(gps)
    if len(tasks) == 1:
        return []
    gps = gps.select(tasks)
    rows = [mask.nonzero().flatten() for mask in gps.mask.cpu()]
    rows = [own[evenly_spaced(len(own), MAX_POINTS)] for own in rows]
    size = gps.mask.shape[-1]
    places = torch.cat([task * size + own for task, own in enumerate(rows)])
    means = gps.mean(gps.train_X.flatten(end_dim=1)[places.to(gps.mask.device)]).cpu()
    parts = means.split([len(own) for own in rows], dim=-1)
    others = [(m.sum(dim=0) - m[task]) / (len(tasks) - 1) for task, m in enumerate(parts)]
    return list(zip(tasks, rows, others, strict=True))


def tasks_agree(correlations: Tensor, significance: float = 2.5) -> bool:
    """Judges whether tasks predict one another.

    Args:
        correlations: The result of :func:`source_agreement`.
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
    by_content = (gps.train_X.sum(dim=-1) * gps.mask).sum(dim=-1).argsort()
    return by_content[evenly_spaced(gps.num_tasks, MAX_TASKS)].tolist()


def _rank_correlation(left: Tensor, right: Tensor) -> float:
    if min(float(left.std(correction=0)), float(right.std(correction=0))) < 1e-12:
        return 0.0
    return float(spearmanr(left.cpu().numpy(), right.cpu().numpy()).statistic)


MAX_COMMON_POINTS = 1000
"""How many inputs of all tasks the predictions are compared at."""


def order_by_relatedness(tasks: PaddedTasks, kernel: str, options: MAPOptions) -> Tensor:
    """Orders tasks so that the one that agrees most with the others comes last.

    Each task's GP predicts the outcomes at the inputs of all tasks (at most ``MAX_COMMON_POINTS``
    of them, evenly thinned out). Tasks are sorted by the mean rank correlation (Spearman's) of
    their predictions with those of the other tasks. In a hierarchy the last task is next to the
    target, and a task that is like most others is most likely to be like the target.

    Args:
        tasks: The standardized tasks.
        kernel: The stationary kernel's name.
        options: How to fit the GPs.

    Returns:
        An ``M`` tensor of task indices, least related first; ties keep their order.
    """
    num_tasks = len(tasks.X)
    if num_tasks < 3:
        # Of two tasks, each agrees with the other equally.
        return torch.arange(num_tasks, device=tasks.X.device)
    gps = fit_map(tasks, kernel, SOURCE_HYPERPARAMETERS, options).condition(tasks, kernel)
    points = tasks.X[tasks.mask]
    points = points[:: -(-len(points) // MAX_COMMON_POINTS)]
    predictions = gps.mean(points)
    # Constant predictions have no ranks: such a task agrees with no other.
    predictions[predictions.std(dim=-1) <= 1e-12] = 0.0
    ranks = torch.as_tensor(rankdata(predictions.cpu().numpy(), axis=1))
    correlation = torch.corrcoef(ranks).nan_to_num(nan=0.0)
    agreement = correlation.sum(dim=-1) - correlation.diagonal()
    return torch.argsort(agreement, stable=True).to(tasks.X.device)
