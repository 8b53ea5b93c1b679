"""From a table of old runs to source data: failed runs, missing parameters, standard errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import SupervisedDataset
from numpy.typing import NDArray
from pandas import DataFrame, Series, to_numeric

from botorch_transfer.search_space import SearchSpace

logger = logging.getLogger(__name__)


def from_dataframe(
    frame: DataFrame,
    space: SearchSpace,
    outcome: str,
    task: str,
    goal: Literal["max", "min"] = "max",
    failed: Literal["drop", "worst"] = "drop",
    noise: str | None = None,
    missing: Mapping[str, Any] | None = None,
) -> dict[str, SupervisedDataset]:
    """Makes source data of a table with one row a run.

    Runs whose outcome is NaN or infinite have failed. They are dropped or get the worst finite
    outcome of their task; a task without any finite outcome is left out. One log line per call says
    how many runs that were, and which tasks.

    Args:
        frame: The table.
        space: The search space of the table.
        outcome: Column with the outcome.
        task: Column with the name of the task; names are compared as text.
        goal: Whether large (``"max"``) or small (``"min"``) outcomes are good. Models maximize, so
            ``"min"`` changes the sign.
        failed: What to do with failed runs: ``"drop"`` them, or give them the task's ``"worst"``
            finite outcome, if a failure tells something about the parameters.
        noise: Column with the standard error of the outcome (not the variance), in the outcome's
            unit; its square becomes ``Yvar``. A task with an empty column has its noise inferred. A
            failed run that is kept has the largest standard error of its task.
        missing: Values of parameters that a task does not record (empty or absent column). Without
            it, such tasks raise an error.

    Returns:
        Mapping from each task's name to its data set, in order of first appearance, in double
        precision. The features are named as in ``space.feature_names``, the outcome as the task
        (BoTorch tells tasks apart by that).

    Raises:
        InputDataError: If a column is missing, a run has no task, no run has a finite outcome, a
            task lacks a parameter that ``missing`` doesn't name, a parameter's value is empty or
            outside of the search space, or a standard error is empty or not positive. The message
            names the task and the parameter.
        ValueError: If ``goal`` or ``failed`` is something else, or ``missing`` names no column of
            the space.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.search_space import FloatParameter, SearchSpace
        >>> runs = DataFrame({"day": ["mon", "mon", "tue"], "C": [1.0, 10.0, 100.0]})
        >>> runs["loss"] = [0.3, 0.2, 0.4]
        >>> space = SearchSpace([FloatParameter("C", 1.0, 100.0, log=True)])
        >>> data = from_dataframe(runs, space, outcome="loss", task="day", goal="min")
        >>> data["mon"].X.flatten().tolist(), data["mon"].Y.flatten().tolist()
        ([0.0, 0.5], [-0.3, -0.2])
    """
    if goal not in ("max", "min"):
        raise ValueError(f"goal is {goal!r}: use 'max' or 'min'.")
    if failed not in ("drop", "worst"):
        raise ValueError(f"failed is {failed!r}: use 'drop' or 'worst'.")
    for argument, column in (("outcome", outcome), ("task", task), ("noise", noise)):
        if column is not None and column not in frame.columns:
            raise InputDataError(
                f"The table has no column {column!r}: name an existing one by {argument}=."
            )
    for name in missing or {}:
        if name not in space.columns:
            raise ValueError(
                f"missing names {name!r}, which is no parameter of the search space: use one of "
                f"{', '.join(space.columns)}."
            )
    sign = 1.0 if goal == "max" else -1.0
    Y = sign * _numbers(frame[outcome])
    datasets: dict[str, SupervisedDataset] = {}
    without_outcome: list[str] = []
    for name, rows in _rows_of_tasks(frame[task]).items():
        finite = np.isfinite(Y[rows])
        if not finite.any():
            without_outcome.append(name)
            continue
        kept = rows if failed == "worst" else rows[finite]
        runs = _fill(name, frame.iloc[kept], space, missing or {})
        try:
            X = space.encode(runs)
        except InputDataError as error:
            raise InputDataError(f"Task {name!r}: {error}") from error
        y = np.where(np.isfinite(Y[kept]), Y[kept], Y[rows][finite].min())
        datasets[name] = SupervisedDataset(
            X,
            torch.from_numpy(y)[:, None],
            Yvar=_variances(name, runs, noise, measured=np.isfinite(Y[kept])),
            feature_names=space.feature_names,
            outcome_names=[name],
        )
    _log(Y, failed, without_outcome)
    if not datasets:
        raise InputDataError(
            f"No run has a finite outcome in the column {outcome!r}: there are no source data in "
            "this table."
        )
    return datasets


def _rows_of_tasks(column: Series) -> dict[str, NDArray[np.intp]]:
    """Positions of each task's rows, in order of first appearance."""
    if column.isna().any():
        row = column.index[int(column.isna().to_numpy().argmax())]
        raise InputDataError(
            f"Row {row} has no task in the column {column.name!r}: name it or drop the row."
        )
    names = column.astype(str).to_numpy()
    positions = Series(np.arange(len(names)))
    return {str(name): rows.to_numpy() for name, rows in positions.groupby(names, sort=False)}


def _fill(name: str, runs: DataFrame, space: SearchSpace, missing: Mapping[str, Any]) -> DataFrame:
    """Fills columns that this task lacks, or refuses it; ``encode`` checks conditional ones."""
    runs = runs.copy(deep=False)
    for parameter in space.parameters:
        for column in parameter.columns:
            if column in runs and runs[column].notna().any():
                continue
            if column in missing:
                runs[column] = missing[column]
            elif parameter.active_if is None:
                raise InputDataError(
                    f"Task {name!r} has no values of parameter {column!r}: give the value that it "
                    f"had by missing={{{column!r}: ...}}, drop the task, or take the parameter "
                    "out of the search space."
                )
    return runs


def _variances(
    name: str, runs: DataFrame, noise: str | None, measured: NDArray[np.bool_]
) -> torch.Tensor | None:
    """Squares the standard errors of ``n`` runs; failed runs get the task's largest."""
    if noise is None or runs[noise].isna().all():
        return None
    errors = _numbers(runs[noise])
    if not (np.isfinite(errors[measured]) & (errors[measured] > 0)).all():
        raise InputDataError(
            f"Task {name!r} has a standard error in the column {noise!r} that is empty or not "
            "positive: correct it, drop the run, or empty the whole column to have the noise "
            "inferred."
        )
    errors = np.where(measured, errors, errors[measured].max())
    return torch.from_numpy(errors**2)[:, None]


def _numbers(column: Series) -> NDArray[np.float64]:
    return to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _log(Y: NDArray[np.float64], failed: str, without_outcome: list[str]) -> None:
    count = int((~np.isfinite(Y)).sum())
    if count == 0:
        return
    treatment = "dropped" if failed == "drop" else "given their task's worst finite outcome"
    message = f"{count:,} of {len(Y):,} runs failed (NaN or infinite outcome) and were {treatment}"
    if without_outcome:
        left_out = ", ".join(map(repr, without_outcome))
        logger.warning("%s; left out without any finite outcome: %s", message, left_out)
    else:
        logger.info(message)
