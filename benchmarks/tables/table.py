"""The result of every reader: the encoded tasks of one search space, for models and studies."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.studies.problems import TableProblem
from botorch_transfer import SearchSpace, from_dataframe

Goal = Literal["max", "min"]


@dataclass(frozen=True, eq=False)
class Table:
    """Evaluations of several tasks of one search space.

    Args:
        name: The table's name.
        space: The search space, which encodes rows as columns of the tensors.
        tasks: Mapping from each task's name to its `n_i x d` inputs in the unit cube and its `n_i x
            1` outcomes, to be maximized.
        frame: The original rows. The rows of a task have the order of the task's tensors.
        task: The column of the frame with the tasks' names.
        best: The best value of each task whose outcomes do not contain it, such as a task of a part
            of a larger table.
    """

    name: str
    space: SearchSpace
    tasks: Mapping[str, tuple[Tensor, Tensor]]
    frame: pd.DataFrame
    task: str = "task"
    best: Mapping[str, float] = field(default_factory=dict)

    def best_known(self, target: str) -> float:
        """Returns the best known value of a task, to compute regret."""
        return self.best.get(target, float(self.tasks[target][1].max()))

    def select(self, names: Iterable[str]) -> Self:
        """Returns the table with some of its tasks, in the given order.

        Args:
            names: The tasks to keep.

        Returns:
            The smaller table.

        Raises:
            ValueError: If the table has no task of a name.
        """
        kept = list(names)
        unknown = [name for name in kept if name not in self.tasks]
        if unknown:
            raise ValueError(f"The table {self.name!r} has no task {unknown[0]!r}.")
        frame = self.frame[self.frame[self.task].astype(str).isin(kept)]
        return replace(self, tasks={name: self.tasks[name] for name in kept}, frame=frame)

    def at_least(self, num_points: int) -> Self:
        """Returns the table without tasks that have fewer than `num_points` evaluations."""
        return self.select(name for name, (_, Y) in self.tasks.items() if len(Y) >= num_points)

    def problem(self, target: str, num_sources: int | None = None) -> TableProblem:
        """Makes a problem from the rows of one task, with other tasks as the history.

        If the target has several values at the same point, the first value counts.

        Args:
            target: The task to optimize.
            num_sources: The number of other tasks to keep; all by default. The random draw depends
                only on the names of the table and of the target.

        Returns:
            The problem, named after the table and the target.

        Raises:
            ValueError: If there is no task of this name.
        """
        others = [name for name in self.tasks if name != target]
        name = f"{self.name}: {target}"
        if num_sources is not None:
            others = _drawn(others, num_sources, seed=zlib.crc32(name.encode()))
        X, Y = self.select([target, *others]).tasks[target]
        _, first = np.unique(X.numpy(), axis=0, return_index=True)
        first.sort()  # the first of equal rows
        history = {name: self.tasks[name] for name in others}
        return TableProblem(name, X[first], Y[first], history)


def make_table(
    name: str,
    frame: pd.DataFrame,
    space: SearchSpace,
    outcome: str,
    goal: Goal,
    task: str = "task",
    missing: Mapping[str, Any] | None = None,
) -> Table:
    """Encodes a frame with one row per evaluation; all readers call this function.

    Args:
        name: The table's name.
        frame: The rows.
        space: The search space.
        outcome: The column of outcomes. Rows with NaN or infinite outcomes are failures, and are
            dropped.
        goal: `"max"` if large outcomes are good, and `"min"` if small outcomes are good.
        task: The column of tasks.
        missing: The values of parameters that a task does not record.

    Returns:
        The table; tasks without any finite outcome are left out.
    """
    options = {"goal": goal, "missing": missing, "robust": None}
    data = from_dataframe(frame, space, outcome, task, **options)
    kept = frame[task].astype(str).isin(list(data))
    kept &= np.isfinite(pd.to_numeric(frame[outcome], errors="coerce"))
    tasks = {task_name: (dataset.X, dataset.Y) for task_name, dataset in data.items()}
    return Table(name, space, tasks, frame[kept], task)


def _drawn(names: list[str], number: int, seed: int) -> list[str]:
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    return [names[i] for i in order[:number].tolist()]
