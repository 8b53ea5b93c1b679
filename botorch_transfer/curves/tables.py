"""Tables with learning curves become tables with one row a run, as everything else reads them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, Series

from botorch_transfer.curves.prior import CurvePrior, Forecast, Study
from botorch_transfer.curves.reading import Curve, full_length, read_curves
from botorch_transfer.data.tables import in_logarithms

logger = logging.getLogger(__name__)

SURE = 0.5
"""Old partial runs count if their standard error is at most this share of their task's spread."""


def variance_column(outcome: str) -> str:
    """The column that has the variances of predicted outcomes."""
    return f"{outcome} (predicted variance)"


class CurveColumns(NamedTuple):
    """Which columns of tables are about learning curves.

    Args:
        step: The step.
        run: The columns whose values are the same in all rows of a run; tables may lack some.
        status: What says whether a run was stopped; tables may lack it.
    """

    step: str
    run: Sequence[str]
    status: str = "status"

    def read(self, table: DataFrame | None, outcome: Any, task: str | None) -> list[Curve]:
        """Reads the curves of one outcome; none if the table has no steps or no such outcome."""
        if table is None or self.step not in table.columns or outcome.name not in table.columns:
            return []
        if outcome.log:
            table = in_logarithms(table, outcome.name)
        keys = [name for name in self.run if name in table.columns]
        return read_curves(table, outcome.name, self.step, outcome.goal, task, keys, self.status)


def one_row_a_run(
    history: DataFrame | None,
    runs: DataFrame | None,
    outcomes: Sequence[Any],
    columns: CurveColumns,
    task: str,
) -> tuple[DataFrame | None, DataFrame | None]:
    """Replaces learning curves by their final outcomes, those of partial runs by predicted ones.

    Args:
        history: Old runs of other tasks.
        runs: The runs of this study.
        outcomes: What the outcomes are.
        columns: The columns of learning curves.
        task: The column of ``history`` that names the task.

    Returns:
        The tables, where a run that diverged has an infinite outcome; rows without a step stay as
        they are. The table of this study's runs has the variances of predicted outcomes
        (:func:`variance_column`). Partial runs are pending until some run is complete. Of old runs,
        partial ones of uncertain outcome are left out.

    Raises:
        InputDataError: If a step is no number.
    """
    tables, names, old = [history, runs], [task, None], {0: SURE}
    last = list[list[int]]()
    for outcome in outcomes:
        read = [columns.read(t, outcome, name) for t, name in zip(tables, names, strict=True)]
        prior = next(filter(None, map(CurvePrior.if_complete, read)), None)
        last = [[curve.row for curve in curves] for curves in read]
        for i, curves in enumerate(read):
            if curves:
                found = outcomes_by_task(prior, curves, old.get(i, np.inf))
                tables[i] = _with_outcomes(tables[i], outcome, last[i], found)
                if i in old:
                    last[i] = [row for row, y in zip(last[i], found.mean, strict=True) if y == y]
    for i, rows in enumerate(last):
        if (table := tables[i]) is not None and columns.step in table:
            kept = table[columns.step].isna().to_numpy(copy=True)
            kept[rows] = True
            tables[i] = table[kept]
    return tables[0], tables[1]


def outcomes_by_task(
    prior: CurvePrior | None, curves: Sequence[Curve], sure: float = np.inf
) -> Forecast:
    """Predicts the final outcomes of the runs of several tasks, each from its own runs.

    Args:
        prior: The prior; without one, only complete runs have an outcome.
        curves: The curves of all tasks.
        sure: The largest standard error of an outcome, in standard deviations of the task's
            complete ones.

    Returns:
        The moments in the order of the curves. Means are NaN where they are too uncertain, and
        infinite where a run diverged.
    """
    found = Forecast(*np.full((3, len(curves)), np.nan))
    for task in dict.fromkeys(curve.task for curve in curves):
        at = [i for i, curve in enumerate(curves) if curve.task == task]
        own = [curves[i] for i in at]
        forecast = Study(own, full_length(own)).known() if prior is None else prior.forecast(own)
        complete = forecast.mean[forecast.variance == 0]
        if np.isfinite(sure) and len(complete):
            uncertain = forecast.variance > (sure * np.std(complete)) ** 2
            forecast.mean[uncertain] = np.nan
        for whole, part in zip(found, forecast, strict=True):
            whole[at] = part
    found.mean[[curve.diverged for curve in curves]] = -np.inf
    if prior is None and (count := int(np.isnan(found.mean).sum())):
        logger.warning("No learning curve is complete: %d stopped runs are left out", count)
    return found


def _with_outcomes(table: Any, outcome: Any, rows: Sequence[int], found: Forecast) -> DataFrame:
    """Replaces the outcomes of the runs' last rows."""
    mean = outcome.sign * found.mean
    cells = table[outcome.name].to_numpy(dtype=object, copy=True)
    cells[rows] = np.where(np.isfinite(mean) & outcome.log, np.exp(mean), mean)
    variance = np.full(len(table), np.nan)
    variance[rows] = found.variance
    replaced = {outcome.name: Series(cells, table.index).infer_objects()}
    return table.assign(**replaced, **{variance_column(outcome.name): variance})
