"""What every reader returns: the tasks of one search space, ready for models and studies."""

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
        space: What the columns of the tensors mean.
        tasks: Mapping from each task's name to its `n_i x d` inputs in the unit cube and its
            `n_i x 1` outcomes, to be maximized.
        frame: The rows as they were; those of a task are in the order of its tensors.
        task: The column of the frame with the tasks' names.
        best: The best value of each task where it isn't among its outcomes, as in a part of a
            larger table.
    """

    name: str
    space: SearchSpace
    tasks: Mapping[str, tuple[Tensor, Tensor]]
    frame: pd.DataFrame
    task: str = "task"
    best: Mapping[str, float] = field(default_factory=dict)

    def best_known(self, target: str) -> float:
        """The value that regret on a task is measured to."""
        return self.best.get(target, float(self.tasks[target][1].max()))

    def select(self, names: Iterable[str]) -> Self:
        """The same table with some of its tasks, in the order given.

        Args:
            names: The tasks to keep.

        Returns:
            The smaller table.

        Raises:
            ValueError: If there is no task of a name.
        """
        kept = list(names)
        unknown = [name for name in kept if name not in self.tasks]
        if unknown:
            raise ValueError(f"The table {self.name!r} has no task {unknown[0]!r}.")
        frame = self.frame[self.frame[self.task].astype(str).isin(kept)]
        return replace(self, tasks={name: self.tasks[name] for name in kept}, frame=frame)

    def at_least(self, num_points: int) -> Self:
        """The same table without the tasks that have fewer evaluations than asked for."""
        return self.select(name for name, (_, Y) in self.tasks.items() if len(Y) >= num_points)

    def problem(self, target: str, num_sources: int | None = None) -> TableProblem:
        """Makes a problem: one task is optimized over its rows, others are the history.

        A point that was evaluated several times counts with its first value in the target.

        Args:
            target: The task to optimize.
            num_sources: How many other tasks to keep, drawn at random; the draw follows from the
                names of the table and the target. All by default.

        Returns:
            The problem, called after the table and the target.

        Raises:
            ValueError: If there is no task of this name.
        """
        others = [name for name in self.tasks if name != target]
        name = f"{self.name}: {target}"
        if num_sources is not None:
            others = _drawn(others, num_sources, seed=zlib.crc32(name.encode()))
        X, Y = self.select([target, *others]).tasks[target]
        _, first = np.unique(X.numpy(), axis=0, return_index=True)
        first.sort()  # of equal rows, the first one
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
    """Encodes a frame with one row an evaluation; all readers end here.

    Args:
        name: The table's name.
        frame: The rows.
        space: What the parameters are.
        outcome: The column of outcomes; NaN and infinite ones are failures, which are dropped.
        goal: Whether large or small outcomes are good.
        task: The column of tasks.
        missing: The values of parameters that a task doesn't record.

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
