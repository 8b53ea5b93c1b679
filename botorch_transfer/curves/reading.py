"""Learning curves in tables: which rows are one run, and how far a run has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series, to_numeric

STOPPED = ("stopped", "pruned", "early_stopped", "early stopped")
"""What the status of a run that was stopped early says, in upper or lower case."""

COMPLETE = ("complete", "completed", "finished", "done")
"""What the status of a run that came to its end says."""

Values = NDArray[np.float64]

DIVERGED = 1e100
"""Outcomes so large are those of diverged runs, as infinite ones are: their squares overflow."""


class Curve(NamedTuple):
    """The learning curve of one run.

    Args:
        steps: An ``n`` array of growing steps, at least one.
        values: An ``n`` array of outcomes to be maximized; NaN where there is none.
        stopped: Whether the run was stopped early; ``None`` if that is not known.
        task: The name of the task.
        row: The position of the last row in the table.

    Example:
        >>> Curve(np.array([1.0, 2.0]), np.array([-0.7, -0.5])).diverged
        False
    """

    steps: Values
    values: Values
    stopped: bool | None = None
    task: str = ""
    row: int = -1

    @property
    def diverged(self) -> bool:
        """Whether the last outcome is no finite number."""
        return not np.isfinite(self.values[-1])

    def in_logarithms(self) -> Curve:
        """The curve of the outcome's logarithm; NaN where it has none."""
        sign = np.sign(np.nanmedian(self.values))
        values = np.where(sign * self.values > 0, sign * self.values, np.nan)
        return self._replace(values=sign * np.log(values))


def read_curves(
    frame: DataFrame,
    outcome: str,
    step: str,
    goal: Literal["min", "max"] = "min",
    task: str | None = None,
    run: str | Sequence[str] | None = None,
    status: str = "status",
) -> list[Curve]:
    """Finds the learning curves of a table.

    Args:
        frame: The table. Rows without a step are no part of a curve.
        outcome: The column of the outcome.
        step: The column of the step.
        goal: Whether small or large outcomes are good.
        task: The column of the task, if there is one.
        run: The columns whose values are the same in all rows of a run. A new run starts where the
            step does not grow; by default only there, so that a run's rows follow one another.
        status: The column that says whether a run was stopped; it may be absent.

    Returns:
        The curves, in the order of their last rows.

    Raises:
        InputDataError: If a column is missing, or a step is no finite number.
        ValueError: If the goal is something else.

    Example:
        >>> runs = DataFrame({"epoch": [1, 2, 1], "loss": [0.9, 0.7, 0.8]})
        >>> [len(curve.steps) for curve in read_curves(runs, "loss", "epoch")]
        [2, 1]
    """
    if goal not in ("min", "max"):
        raise ValueError(f"goal is {goal!r}: use 'min' or 'max'.")
    keys = [run] if isinstance(run, str) else list(run or ())
    keys = [*([] if task is None else [task]), *keys]
    for name in (outcome, step, *keys):
        if name not in frame.columns:
            raise InputDataError(f"The table has no column {name!r} of learning curves: name one.")
    steps = to_numeric(frame[step], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = frame[step].notna().to_numpy() & ~np.isfinite(steps)
    if bad.any():
        row = int(bad.argmax())
        raise InputDataError(
            f"The column {step!r} has {frame[step].iloc[row]!r} in row {frame.index[row]}, which "
            "is no number: correct it, or empty the cell of a run without a curve."
        )
    values = to_numeric(frame[outcome], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    values = np.where(np.abs(values) < DIVERGED, values, np.nan)
    values = values if goal == "max" else -values
    states = frame.get(status, Series("", index=frame.index)).astype(str).str.strip().str.lower()
    group: NDArray[Any] = np.zeros(len(frame), dtype=np.intp)
    if keys:
        group = frame.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    order = np.argsort(group, kind="stable")
    order = order[np.isfinite(steps[order])]
    new = (np.diff(group[order]) != 0) | (np.diff(steps[order]) <= 0)
    curves = []
    for rows in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
        state = states.iloc[rows[-1]]
        stopped = True if state in STOPPED else False if state in COMPLETE else None
        name = "" if task is None else str(frame[task].iloc[rows[-1]])
        curves.append(Curve(steps[rows], values[rows], stopped, name, int(rows[-1])))
    return sorted(curves, key=lambda curve: curve.row)


def full_length(curves: Sequence[Curve], usual: float | None = None) -> float:
    """The step at which the runs of a task are complete.

    Args:
        curves: The curves of one task.
        usual: What it is in other tasks.

    Returns:
        The last step of the runs that are complete. If no status says which ones are, it is the
        largest step, if two runs have come that far or no other task tells; else the larger one of
        that and the usual step.
    """
    ends = np.array([c.steps[-1] for c in curves if not c.diverged and c.stopped is not True])
    complete = [c.steps[-1] for c in curves if c.stopped is False]
    if complete:
        return float(max(complete))
    longest = max((float(c.steps[-1]) for c in curves), default=0.0)
    if usual is None or np.sum(ends == longest) > 1:
        return longest
    return max(longest, usual)


def shares(steps: Values, full: float, first: float, gap: float) -> Values:
    """The shares of the full length that steps are; a first step of zero is one step long."""
    offset = gap - first if first <= 0 else 0.0
    return (steps + offset) / (full + offset)
