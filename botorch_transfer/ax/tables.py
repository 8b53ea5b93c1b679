"""Tables and tensors of old runs, read as columns of values that JSON holds exactly."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from ax.exceptions.core import UserInputError
from torch import Tensor

logger = logging.getLogger(__name__)

TENSOR_TASK = "old task"  # not "task", which may be a metric

TensorHistory = Mapping[str, tuple[Tensor, ...]]
"""Old tasks by name: ``(X, Y)`` or ``(X, Y, Yvar)``, in the raw search space."""


def columns_of_frame(frame: pd.DataFrame, task: str) -> dict[str, list[Any]]:
    """Reads a table.

    Args:
        frame: The table, one row a run.
        task: The column with the name of the old task.

    Returns:
        Its columns by name, ``None`` where a value is missing; names of tasks are strings.

    Raises:
        UserInputError: If there are no rows, no column of that name, two of one name, or a row
            that does not say its task.
    """
    if task not in frame.columns:
        raise UserInputError(
            f"The history has no column {task!r} that says which old task a run is of: name it "
            "by task=..."
        )
    if frame.empty:
        raise UserInputError("The history has no rows: leave it out to start without one.")
    names = frame.columns.astype(str)
    if not names.is_unique:
        twice = sorted(set(names[names.duplicated()]))
        raise UserInputError(f"The history has several columns {twice}: keep one of each.")
    if frame[task].isna().any():
        raise UserInputError(
            f"Old runs lack a name in the column {task!r}: say which task they are of, or "
            "leave them out."
        )
    columns = {str(name): _plain(frame[name]) for name in frame.columns}
    odd = {name for name, values in columns.items() if not all(map(_is_plain, values))}
    if dropped := sorted(odd - {str(task)}):
        logger.info("The columns %s hold neither numbers nor words, and are left out.", dropped)
    columns = {name: values for name, values in columns.items() if name not in dropped}
    columns[str(task)] = [str(name) for name in columns[str(task)]]
    return columns


def columns_of_tensors(metrics: Mapping[str, TensorHistory]) -> dict[str, list[Any]]:
    """Reads tensors.

    Args:
        metrics: By metric and old task: ``X`` (``n_i x d``), ``Y`` (``n_i x 1``) and maybe
            ``Yvar`` (``n_i x 1``).

    Returns:
        Columns by name: the inputs by their positions, metrics, their standard errors
        (``"<metric>_sem"``), and :data:`TENSOR_TASK`.

    Raises:
        UserInputError: If there are no tasks, or tensors of the wrong shape.
    """
    frames = [
        _frame(name, data, metric)
        for metric, tasks in metrics.items()
        for name, data in tasks.items()
    ]
    if not frames or all(frame.empty for frame in frames):
        raise UserInputError("The history has no runs: leave it out to start without one.")
    if len({sum(name.isdigit() for name in frame.columns) for frame in frames}) > 1:
        raise UserInputError("The old tasks differ in their numbers of inputs.")
    frame = pd.concat(frames, ignore_index=True)
    return {str(name): _plain(frame[name]) for name in frame.columns}


def _plain(column: pd.Series) -> list[Any]:
    """Values that JSON holds exactly; ``None`` where there is none."""
    values = column.astype(object).where(column.notna(), None).tolist()
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _frame(name: str, data: tuple[Tensor, ...], metric: str) -> pd.DataFrame:
    X, Y, *rest = (part.detach().cpu().numpy() for part in data)
    shapes = [part.shape for part in (Y, *rest)]
    if X.ndim != 2 or len(rest) > 1 or any(shape != (len(X), 1) for shape in shapes):
        raise UserInputError(
            f"The old task {name!r} must be (X, Y) or (X, Y, Yvar) of shapes n x d, n x 1 and "
            f"n x 1, but has {[part.shape for part in (X, Y, *rest)]}."
        )
    if rest and bool((rest[0] <= 0).any()):
        raise UserInputError(
            f"The old task {name!r} has noise variances that are not positive: leave Yvar out if "
            "its noise is unknown."
        )
    frame = pd.DataFrame({str(i): X[:, i].tolist() for i in range(X.shape[1])})
    frame[TENSOR_TASK] = name
    frame[metric] = Y[:, 0].tolist()
    if rest:
        frame[f"{metric}_sem"] = np.sqrt(rest[0][:, 0]).tolist()
    return frame
