"""Converts tables with learning curves into tables with one row per run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, Series

from botorch_transfer.curves.prior import Curve, CurvePrior, Forecast, Study, Values, read_curves
from botorch_transfer.data.measurements import FATE, logarithms, numbers, variance_column

logger = logging.getLogger(__name__)

#: An old partial run is left out if the standard error of its predicted outcome exceeds this share
#: of the standard deviation of the task's complete outcomes.
SURE = 0.5


class CurveColumns(NamedTuple):
    """Names of the columns of learning curves.

    Args:
        step: The column of the step.
        run: The columns whose values are the same in all rows of a run. A table may lack some of
            these columns.
        status: The column with the state of a run. A table may lack this column.
    """

    step: str
    run: Sequence[str]
    status: str = "status"

    def read(self, table: DataFrame | None, outcome: Any, task: str | None) -> list[Curve]:
        """Reads the learning curves of one outcome; returns no curves if a column is missing."""
        if table is None or self.step not in table.columns or outcome.name not in table.columns:
            return []
        if outcome.log:
            values = logarithms(numbers(table, outcome.name), table, outcome.name)
            table = table.assign(**{outcome.name: values})
        keys = [name for name in self.run if name in table.columns]
        return read_curves(table, outcome.name, self.step, outcome.goal, task, keys, self.status)


class OwnCurves(NamedTuple):
    """Learning curves of a study's runs for one outcome.

    Args:
        step: The column of the step.
        curves: The curves. The ``row`` of a curve is a position in the table of runs.
        prior: The prior that predicts final outcomes; ``None`` if there is no complete run, neither
            in this study nor among the old runs.
    """

    step: str
    curves: Sequence[Curve]
    prior: CurvePrior | None

    def forecast(self) -> Forecast:
        """Predicts the final outcome of each run. Complete runs keep their known outcomes."""
        return (
            Study(self.curves).known() if self.prior is None else self.prior.forecast(self.curves)
        )


def one_row_a_run(
    history: DataFrame | None,
    runs: DataFrame | None,
    outcomes: Sequence[Any],
    columns: CurveColumns,
    task: str,
) -> tuple[DataFrame | None, DataFrame | None, dict[str, OwnCurves]]:
    """Reduces the learning curve of each run to one row with the known or predicted final outcome.

    Args:
        history: Old runs of other tasks.
        runs: The runs of this study.
        outcomes: The outcomes.
        columns: The names of the columns.
        task: The column of ``history`` that names the task.

    Returns:
        The table of old runs, the table of this study's runs, and the curves of this study's runs
        by outcome. A run that diverged has an infinite outcome. Rows without a step do not change.
        The tables have a column with the variances of predicted outcomes
        (:func:`variance_column`). Without any complete run, nothing can be predicted, and this
        study's partial runs are pending. Old partial runs with an uncertain outcome are left out.

    Raises:
        InputDataError: If a step is negative or not a number.
    """
    ends, own_ends, found = set[int](), set[int](), dict[str, OwnCurves]()
    for outcome in outcomes:
        old, own = columns.read(history, outcome, task), columns.read(runs, outcome, None)
        prior = CurvePrior.of_curves(old) or CurvePrior.of_curves(own)
        history, known = _with_ends(history, outcome, old, prior, SURE)
        runs, _ = _with_ends(runs, outcome, own, prior)
        ends, own_ends = ends | known, own_ends | {curve.row for curve in own}
        if own:
            found[outcome.name] = OwnCurves(columns.step, own, prior)
    return _rows(history, columns.step, ends), _rows(runs, columns.step, own_ends), found


def _with_ends(
    table: Any,
    outcome: Any,
    curves: Sequence[Curve],
    prior: CurvePrior | None,
    sure: float = np.inf,
) -> tuple[Any, set[int]]:
    """Writes the known or predicted final outcome of each run into the run's last row.

    Returns:
        The table, and the positions of the rows that have an outcome.
    """
    if not curves:
        return table, set()
    rows = np.array([curve.row for curve in curves])
    ends, variances = predicted_ends(prior, curves, outcome.sign, outcome.log, sure)
    cells = table[outcome.name].to_numpy(dtype=object, copy=True)
    variance = np.full(len(table), np.nan)
    cells[rows], variance[rows] = ends, variances
    replaced = {outcome.name: Series(cells, table.index).infer_objects()}
    table = table.assign(**replaced, **{variance_column(outcome.name): variance})
    fate = table[FATE].to_numpy(dtype=object, copy=True)
    stopped = rows[[curve.stopped is True for curve in curves]]  # may get a predicted outcome
    fate[stopped[fate[stopped] == "ended"]] = ""
    table[FATE] = fate
    return table, set(rows[~np.isnan(ends)].tolist())


def _rows(table: Any, step: str, ends: set[int]) -> Any:
    """Keeps the rows at the positions ``ends``, and all rows without a step."""
    if table is None or step not in table:
        return table
    kept = table[step].isna().to_numpy(copy=True)
    kept[list(ends)] = True
    return table[kept]


def predicted_ends(
    prior: CurvePrior | None,
    curves: Sequence[Curve],
    sign: float,
    log: bool = False,
    sure: float = np.inf,
) -> tuple[Values, Values]:
    """Predicts the final outcomes of runs of several tasks, separately for each task.

    Args:
        prior: The prior; if it is ``None``, only complete runs have an outcome.
        curves: The curves of all tasks.
        sign: The factor between the outcome and its maximized form: 1 to maximize, -1 to minimize.
        log: Whether the curves contain the outcome's logarithm.
        sure: The largest allowed standard error of a predicted outcome, in standard deviations of
            the outcomes of the task's complete runs.

    Returns:
        The outcomes and their variances in the order of the curves. An outcome is NaN if its
        standard error is too large, and infinite if the run diverged. With ``log``, the variances
        are variances of the logarithm.
    """
    mean, variance = np.full((2, len(curves)), np.nan)
    for task in dict.fromkeys(curve.task for curve in curves):
        at = [i for i, curve in enumerate(curves) if curve.task == task]
        own = [curves[i] for i in at]
        found = Study(own).known() if prior is None else prior.forecast(own)
        complete = found.mean[found.variance == 0]
        if np.isfinite(sure) and len(complete):
            found.mean[found.variance > (sure * np.std(complete)) ** 2] = np.nan
        mean[at], variance[at] = found.mean, found.variance
    mean[[curve.diverged for curve in curves]] = -np.inf
    if prior is None and (count := int(np.isnan(mean).sum())):
        logger.warning("No learning curve is complete: %d stopped runs are left out", count)
    return np.where(np.isfinite(mean) & log, np.exp(sign * mean), sign * mean), variance
