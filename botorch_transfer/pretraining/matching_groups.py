"""Source tasks that were evaluated at the same inputs: what the EKL is defined on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class MatchingGroup:
    """Inputs at which several tasks were evaluated.

    Args:
        tasks: An ``N`` tensor: the tasks' numbers, in ascending order.
        rows: A ``P x N`` tensor: the row of each shared input in each task.
    """

    tasks: Tensor
    rows: Tensor

    def thinned(self, max_points: int, generator: torch.Generator) -> MatchingGroup:
        """Draws inputs, if there are more than wanted; they stay in order.

        Args:
            max_points: The most inputs to keep.
            generator: A random number generator on the CPU.

        Returns:
            The group with at most so many inputs.
        """
        if len(self.rows) <= max_points:
            return self
        kept = torch.randperm(len(self.rows), generator=generator)[:max_points]
        return MatchingGroup(self.tasks, self.rows[kept.sort().values])


def find_matching_groups(
    inputs: Sequence[Tensor],
    groups: Sequence[Sequence[int]] | None = None,
    tolerance: float | None = None,
) -> list[MatchingGroup]:
    """Finds the inputs that tasks share.

    Each input belongs to the group of all tasks that were evaluated there, so that a design that
    all tasks share is one group, and one that half of them share another. An input that a task was
    evaluated at repeatedly counts with its first evaluation.

    Args:
        inputs: Each task's ``n_i x d`` tensor of inputs.
        groups: Sets of tasks, by number, whose common inputs make a group each; by default the
            groups are found.
        tolerance: How far two values of one input dimension may lie apart and still count as the
            same; by default what single precision cannot tell apart in the unit cube, or 1e-8 in
            double precision.

    Returns:
        The groups, each of two tasks or more, ordered by their tasks.

    Raises:
        InputDataError: If no two tasks share an input, or the tasks of a given group don't.
        ValueError: If no group is given.

    Example:
        >>> X = torch.rand(4, 2)
        >>> groups = find_matching_groups([X, X[1:].flip(0), torch.rand(3, 2)])
        >>> groups[0].tasks, groups[0].rows
        (tensor([0, 1]), tensor([[1, 2], [2, 1], [3, 0]]))
    """
    if tolerance is None:
        tolerance = default_tolerance(inputs[0].dtype)
    if groups is not None and len(groups) == 0:
        raise ValueError("groups is empty: leave it out, and all matching inputs are found.")
    first_row = _first_rows(inputs, tolerance)
    visited = first_row >= 0
    found = _found_groups(visited) if groups is None else _given_groups(visited, groups)
    device = inputs[0].device
    return [
        MatchingGroup(
            torch.from_numpy(tasks).to(device),
            torch.from_numpy(_in_order(first_row[points][:, tasks])).to(device),
        )
        for tasks, points in found
    ]


def default_tolerance(dtype: torch.dtype) -> float:
    """How far two values of one input may lie apart and still count as the same."""
    return 1e-6 if dtype == torch.float32 else 1e-8


def _first_rows(inputs: Sequence[Tensor], tolerance: float) -> Rows:
    """The first row of each task at each different input, -1 where it was not evaluated."""
    stacked = torch.cat(list(inputs)).detach().cpu().double().numpy()
    codes = np.stack([_codes(column, tolerance) for column in stacked.T], axis=-1)
    _, point = np.unique(codes, axis=0, return_inverse=True)
    point = point.reshape(-1)
    task = np.repeat(np.arange(len(inputs)), [len(X) for X in inputs])
    row = np.concatenate([np.arange(len(X)) for X in inputs])
    nowhere = len(stacked)
    first = np.full((int(point.max()) + 1, len(inputs)), nowhere, dtype=np.intp)
    np.minimum.at(first, (point, task), row)
    return np.where(first == nowhere, -1, first)


def _codes(values: npt.NDArray[np.float64], tolerance: float) -> Rows:
    """Numbers the different values of a column; a grid would part neighbours at its edges."""
    order = np.argsort(values, kind="stable")
    steps = np.diff(values[order], prepend=values[order[:1]]) > tolerance
    codes = np.empty(len(values), dtype=np.intp)
    codes[order] = np.cumsum(steps)
    return codes


def _found_groups(visited: npt.NDArray[np.bool_]) -> list[tuple[Rows, Rows]]:
    points_of = defaultdict(list)
    for point, tasks in enumerate(visited):
        points_of[tuple(np.flatnonzero(tasks).tolist())].append(point)
    groups = [
        (np.array(tasks, dtype=np.intp), np.array(points, dtype=np.intp))
        for tasks, points in sorted(points_of.items())
        if len(tasks) > 1
    ]
    if not groups:
        raise InputDataError(
            "No two source tasks share an input, which the EKL needs: use objective='nll'."
        )
    return groups


def _given_groups(
    visited: npt.NDArray[np.bool_], groups: Sequence[Sequence[int]]
) -> list[tuple[Rows, Rows]]:
    found = []
    for number, members in enumerate(groups):
        tasks = np.unique(np.asarray(members, dtype=np.intp))
        if len(tasks) < 2 or tasks[0] < 0 or tasks[-1] >= visited.shape[1]:
            raise InputDataError(
                f"Group {number} is {list(members)}: name two source tasks or more, by numbers "
                f"from 0 to {visited.shape[1] - 1}."
            )
        points = np.flatnonzero(visited[:, tasks].all(axis=-1))
        if len(points) == 0:
            raise InputDataError(
                f"The tasks {list(members)} of group {number} share no input: leave the group out, "
                "or use objective='nll'."
            )
        found.append((tasks, points))
    return found


def _in_order(rows: Rows) -> Rows:
    """Sorts shared inputs by their rows in the first task, whatever the order of their values."""
    return rows[np.argsort(rows[:, 0], kind="stable")]
