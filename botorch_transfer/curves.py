r"""Learning curves: predicts the final outcome of a run from the beginning of its learning curve.

:func:`read_curves` reads the learning curves of a table, and :class:`CurvePrior` predicts final
outcomes. :func:`one_row_a_run` reduces each curve in a table to its known or predicted outcome.

A run has reached the share ``t`` of its full length. The smoothed value of the learning curve at
``t`` is ``u``, and the improvement of this value since ``t / 2`` is ``d``. The final outcome is
``f``. ``u`` and ``f`` are standardized by the location and scale of the task's final outcomes,
and ``d`` is divided by the scale. The model is

.. code-block:: text

    f = u + (w + b)ᵀ (1, u, d) + e        b ~ N(0, D),  e ~ N(0, σ² (1 + min(u, 0)²))

with coefficients ``w`` that all tasks share, and deviations ``b`` of a single task. Expectation
maximization learns ``w``, ``D`` and ``σ²`` at fixed values of ``t``, the knots. The prediction for
a run uses the knot nearest to the run's ``t``. ``D`` and ``σ²`` are scaled so that nine in ten
final outcomes of left-out tasks lie in their predicted 90 % interval.

In a new study, the complete runs determine the posterior of the study's ``b``. The residuals of
these runs and the distance of ``b`` from zero determine a factor, by which all variances of the
study are multiplied. The factor is above one if the history misleads, and below one if the old
tasks are noisier than the new study.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series, to_numeric
from scipy.special import ndtr
from torch import Tensor

from botorch_transfer.data.measurements import FATE, cut_short, logarithms, numbers, variance_column
from botorch_transfer.progress import logged_once
from botorch_transfer.saving import Saved
from botorch_transfer.search_space.cells import refuse_cell
from botorch_transfer.search_space.guess import warn_of_goal
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)

Values = NDArray[np.float64]

#: An outcome with at least this absolute value counts as diverged: its square may overflow.
DIVERGED = 1e100

#: Shares of a run's full length at which the model of final outcomes is fitted.
KNOTS: Values = np.array(
    [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
)

#: Width of the moving average of a learning curve, as a share of the steps so far. The width
#: shrinks to one value at the full length.
WINDOW = 0.2

#: Lower and upper bounds of ``u`` and ``d`` in the regression. Half of the difference between ``u``
#: and the bounded ``u`` is added to the predicted final outcome.
LEAST, MOST = np.array([-4.0, -1.0]), np.array([3.0, 4.0])

#: Prior guess of the variances of a task's deviations ``b``. It counts as much as one task.
USUAL_VARIANCE = np.array([0.1, 0.05, 0.1])

#: Number of runs from which the location and scale of a left-out task are estimated, number of
#: steps of expectation maximization, and maximum number of cross-validation folds.
NUM_SEEN, NUM_STEPS, MAX_FOLDS = 3, 30, 20

#: Maximum number of complete runs for a pruning decision. The most recent runs are used.
MAX_COMPLETE = 30

#: Degrees of freedom of the Student-t errors, and number of rounds that reweight outliers.
DEGREES, NUM_REWEIGHTED = 4.0, 3

#: Weight of the old tasks' variances in a new study, as a number of the study's complete runs.
TRUST = 2.0

#: A run that has reached this share of the full length is never stopped.
LATEST = 0.9

#: Minimum number of points of a complete curve to learn from.
ENOUGH_POINTS = 3

#: A warning about the unit is logged if a study's median final outcome is ``FAR`` standard
#: deviations and a factor of ``FACTOR`` away from the usual final outcome.
FAR, FACTOR = 30.0, 10.0

#: Half-width of a 90 % interval in standard deviations.
WIDTH_90 = 1.6449


# ------------------------------------------------------------------------------------------- curves


class Curve(NamedTuple):
    """Learning curve of one run.

    Args:
        steps: An ``n`` array of increasing steps, such as epochs; ``n`` is at least one.
        values: An ``n`` array of outcomes to be maximized; NaN if a step has no outcome.
        stopped: Whether the run was stopped early; ``None`` if unknown.
        task: The name of the task.
        row: The position of the run's last row in the table of runs.

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
        """Whether the last outcome is NaN or infinite."""
        return not np.isfinite(self.values[-1])

    def in_logarithms(self) -> Curve:
        """Returns the curve on a logarithmic scale; values without a logarithm become NaN.

        A value ``v`` becomes ``log(v)`` if the median of the values is positive. Otherwise, the
        values are assumed to be losses times -1, and ``v`` becomes ``-log(-v)``.
        """
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
    """Reads the learning curves of a table.

    Args:
        frame: The table. Rows without a step do not belong to a curve.
        outcome: The column of the outcome.
        step: The column of the step.
        goal: ``"min"`` if small outcomes are good, ``"max"`` if large outcomes are good.
        task: The column of the task, if there is one.
        run: The columns whose values are the same in all rows of a run. A group is all rows with
            the same task and the same values in these columns. If all steps of a group differ, the
            group is one run, sorted by step. Otherwise, or if ``run`` is omitted, the rows of the
            group keep the order of the table, and a new run starts at each row whose step is not
            larger than the previous step.
        status: The column with the state of a run; it may be absent.

    Returns:
        One curve for each run, in the order of the runs' last rows.

    Raises:
        InputDataError: If a column is missing, or a step is negative or not a finite number.
        ValueError: If ``goal`` is neither ``"min"`` nor ``"max"``.

    Example:
        >>> runs = DataFrame({"epoch": [1, 2, 1], "loss": [0.9, 0.7, 0.8]})
        >>> [len(curve.steps) for curve in read_curves(runs, "loss", "epoch")]
        [2, 1]
    """
    if goal not in ("min", "max"):
        raise ValueError(f"goal is {goal!r}: use 'min' or 'max'.")
    keys = [run] if isinstance(run, str) else list(run or ())
    keys = [*([] if task is None else [task]), *keys]
    frame = check_table(frame, (), [outcome, step, status, *keys])
    for name in (outcome, step, *keys):
        if name not in frame.columns:
            raise InputDataError(
                f"The table of learning curves has no column {name!r}: choose an existing column."
            )
    steps = to_numeric(frame[step], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = frame[step].notna().to_numpy() & ~np.isfinite(steps)
    problem = "which is not a number: correct the cell, or empty it if the run has no curve"
    refuse_cell(bad, frame[step], problem)
    refuse_cell(steps < 0, frame[step], "which is negative: correct the cell, or empty it")
    values = numbers(frame, outcome)
    values = np.where(np.abs(values) < DIVERGED, values if goal == "max" else -values, np.nan)
    states = frame.get(status, Series("", index=frame.index)).tolist()
    by = keys or np.zeros(len(frame))
    group = frame.groupby(by, dropna=False, sort=False).ngroup().to_numpy()
    twice = DataFrame({"group": group, "step": steps}).duplicated(keep=False).to_numpy()
    in_order = np.isin(group, group[twice & np.isfinite(steps)]) | (not run)
    order = np.lexsort((np.where(in_order, 0.0, steps), group))
    order = order[np.isfinite(steps[order])]
    new = (np.diff(group[order]) != 0) | (np.diff(steps[order]) <= 0)
    curves = []
    for rows in np.split(order, np.flatnonzero(new) + 1) if len(order) else ():
        name = "" if task is None else str(frame[task].iloc[rows[-1]])
        last = int(rows[-1])
        curves.append(Curve(steps[rows], values[rows], cut_short(states[last]), name, last))
    return sorted(curves, key=lambda curve: curve.row)


def full_length(curves: Sequence[Curve], usual: float | None = None) -> float:
    """Returns the step at which the runs of a task are complete.

    Args:
        curves: The curves of one task.
        usual: The full length of other tasks, if there are any.

    Returns:
        If some runs are marked as complete, the result is the largest step of these runs. If no run
        is marked as complete, the result depends on ``last``, the largest step of all runs, and on
        ``usual``. The result is ``last`` if ``usual`` is ``None``, or if two or more runs reached
        ``last`` without being stopped or diverging. Otherwise, the result is the larger one of
        ``last`` and ``usual``.
    """
    if complete := [c.steps[-1] for c in curves if c.stopped is False]:
        return float(max(complete))
    ends = [c.steps[-1] for c in curves if not c.diverged and c.stopped is not True]
    longest = max((float(c.steps[-1]) for c in curves), default=0.0)
    if usual is None or ends.count(longest) > 1:
        return longest
    return max(longest, usual)


def shares(steps: Values, full: float, first: float, gap: float) -> Values:
    """Converts steps of runs to shares of the full length.

    Args:
        steps: The steps.
        full: The full length, in steps.
        first: The smallest step of the task. If this step is zero or negative, all steps are
            shifted so that this step becomes ``gap``.
        gap: The distance between the first two steps of a run; if the runs of the task differ, the
            smallest of these distances.

    Returns:
        The shares, usually between 0 and 1.
    """
    offset = gap - first if first <= 0 else 0.0
    return (steps + offset) / (full + offset)


# ---------------------------------------------------------------------------------------- the prior


class Forecast(NamedTuple):
    """Predicted final outcomes of ``n`` runs; large outcomes are good.

    Args:
        mean: An ``n`` array of means; NaN for runs that diverged.
        variance: An ``n`` array of variances; zero for complete runs.
        share: An ``n`` array of shares of the full length that the runs have reached.
    """

    mean: Values
    variance: Values
    share: Values


class CurvePrior(Saved):
    """Model that predicts the final outcome of a run from its partial learning curve.

    Use the prior to predict the outcome of a run that was stopped early, or is still running. The
    prior is learned from complete curves of old tasks. A saved prior contains no outcomes of runs.

    Args:
        config: The goal and the names of the columns, as in :meth:`fit`.
        tensors: Learned parameters, by name.

    Example:
        >>> from pandas import DataFrame
        >>> rows = [("monday", run, k, run + 1 / k) for run in range(5) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "run", "epoch", "loss"])
        >>> prior = CurvePrior.fit(old, outcome="loss", step="epoch", goal="min")
        >>> prior.predict(DataFrame({"epoch": [1, 2], "loss": [3.0, 2.5]}))["share"].tolist()
        [0.2]
    """

    unit: Tensor
    length: Tensor

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.config, self._logged = config, set[str]()
        for name in ("unit", "coefficients", "task_variance", "noise", "trust", "length"):
            self.register_buffer(name, tensors[name])

    @classmethod
    def fit(
        cls,
        frame: DataFrame,
        outcome: str = "loss",
        step: str = "epoch",
        goal: Literal["min", "max"] = "min",
        task: str | None = "task",
        run: str | Sequence[str] | None = None,
        status: str = "status",
    ) -> Self:
        """Learns the prior from the complete curves of a table, and ignores all other curves.

        Args:
            frame: The table, with one row per step.
            outcome: The column of the outcome.
            step: The column of the step. Tasks may differ in their last step and in the distance
                between steps.
            goal: ``"min"`` if small outcomes are good, ``"max"`` if large outcomes are good.
            task: The column of the task; ``None`` if all runs belong to one task.
            run: The columns whose values are the same in all rows of a run. If omitted, the rows of
                a run must be adjacent.
            status: The column with the state of a run; it may be absent.

        Returns:
            The prior.

        Raises:
            InputDataError: If a column is missing, or no run is complete.
            ValueError: If ``goal`` is neither ``"min"`` nor ``"max"``.
        """
        config = {"outcome": outcome, "step": step, "goal": goal, "run": run, "status": status}
        curves = read_curves(frame, outcome, step, goal, task, run, status)
        warn_of_goal(outcome, 1.0 if goal == "max" else -1.0)
        if (prior := cls.of_curves(curves, config)) is None:
            raise InputDataError("No learning curve is complete: give at least one complete run.")
        return prior

    @classmethod
    def of_curves(
        cls, curves: Sequence[Curve], config: dict[str, Any] | None = None
    ) -> Self | None:
        """Learns the prior from curves instead of a table.

        Args:
            curves: The curves of all tasks.
            config: The names of the columns and the goal, as in :meth:`fit`. Only :meth:`read` and
                :meth:`predict` need them.

        Returns:
            The prior; ``None`` if no run is complete.
        """
        tasks: dict[str, list[Curve]] = {}
        for curve in curves:
            tasks.setdefault(curve.task, []).append(curve)
        read = [Study(task) for task in tasks.values()]
        if not (known := [study for study in read if study.teaches.any()]):
            return None
        found = {**_learned(known), "length": np.median([study.full for study in read])}
        return cls(config or {}, {name: torch.as_tensor(value) for name, value in found.items()})

    def read(self, table: DataFrame, task: str | None = None) -> list[Curve]:
        """Reads the curves of a table that has the columns to which the prior was fitted."""
        return read_curves(table, task=task, **self.config)

    def predict(self, runs: DataFrame) -> DataFrame:
        """Predicts the final outcomes of the runs of one task, from a table with one row per step.

        Args:
            runs: The table. It needs the columns to which the prior was fitted, except for the
                task.

        Returns:
            The last row of each run with three further columns: ``predicted_mean`` and
            ``predicted_std`` of the final outcome in the outcome's unit, and ``share``, the share
            of the full length that the run has reached. For a complete run, ``predicted_mean`` is
            the run's outcome, and ``predicted_std`` is zero. For a run that diverged,
            ``predicted_mean`` and ``predicted_std`` are NaN.

        Raises:
            InputDataError: If a column is missing.
        """
        curves = self.read(runs)
        found = self.forecast(curves)
        table = runs.iloc[[curve.row for curve in curves]].copy()
        table["predicted_mean"] = found.mean if self.config["goal"] == "max" else -found.mean
        table["predicted_std"] = np.sqrt(found.variance)
        table["share"] = found.share
        return table

    def forecast(self, curves: Sequence[Curve]) -> Forecast:
        """Predicts the final outcomes of the runs of one task; large outcomes are good.

        Args:
            curves: All curves of the task. The complete curves adapt the predictions to the task.

        Returns:
            The means and variances of the final outcomes.
        """
        study = Study(curves, float(self.length))
        learned = {name: buffer.double().cpu().numpy() for name, buffer in self.named_buffers()}
        self._compare_unit(study.last[study.complete])
        unit = _unit(learned["unit"], study.at_end[~study.diverged, 0])
        A, c, s, n = _sums(study, unit, learned)
        w, S = _conditioned(A, c, learned)
        misfit = _squares(A, c, s, w) / learned["noise"]
        misfit += np.sum((w - learned["coefficients"]) ** 2 / learned["task_variance"], axis=-1)
        own = (learned["trust"] + misfit) / (learned["trust"] + n)
        partial = np.flatnonzero(~study.diverged & ~study.complete)
        k = np.abs(study.share[partial, None] - KNOTS).argmin(axis=1)
        mean, variance, share = study.known()
        found = _moments(study.at_end[partial], unit, w[k], S[k], learned["noise"][k])
        mean[partial], variance[partial] = found[0], found[1] * own[k]
        return Forecast(mean, variance, share)

    def compare_goal(self, sign: float) -> None:
        """Warns once if a study's goal is the opposite of the prior's goal.

        Args:
            sign: 1 if the study maximizes, -1 if the study minimizes.
        """
        if self.config.get("goal") == ("min" if sign > 0 else "max"):
            self._warn("The curves' prior and the study have opposite goals: correct one goal")

    def _compare_unit(self, ends: Values) -> None:
        """Warns once if the final outcomes ``ends`` of a study are far from the usual outcomes."""
        log_scale, _, center, of_center = self.unit.tolist()
        far = max(FAR * math.sqrt(of_center + math.exp(2 * log_scale)), (FACTOR - 1) * abs(center))
        if len(np.unique(ends)) > 2 and abs(np.median(ends) - center) > far:
            self._warn("The final outcomes of this study are far from old ones: use one unit")

    def _warn(self, text: str) -> None:
        """Logs a warning, but each ``text`` only once."""
        with logged_once(self._logged):
            logger.warning(text)

    def is_hopeless(self, own: Curve, others: Sequence[Curve], probability: float = 0.95) -> bool:
        """Decides whether a run will probably end worse than the best run of its task.

        The best run is the best complete run among ``others``. If none of them is complete, the
        best run is the run among ``others`` with the best prediction. A diverged run is always
        hopeless. A run that has not diverged is never hopeless in three cases: all other runs have
        diverged, the run is nearly complete, or the run's last value is no worse than the best
        run's value at the same step.

        Args:
            own: The curve of the run.
            others: The curves of the task's other runs; ``own`` may be among them.
            probability: Threshold for runs that the rules above do not decide. Such a run is
                hopeless if the probability that it ends worse than the best run exceeds this value.

        Returns:
            Whether the run is hopeless.
        """
        if own.diverged:
            return True
        others = [curve for curve in others if curve is not own and not curve.diverged]
        if complete := [curve for curve in others if curve.stopped is False]:
            best = max(complete, key=lambda curve: float(curve.values[-1]))
            others = [best, *complete[-MAX_COMPLETE:]]
        if not others:
            return False
        found = self.forecast([own, *others])
        at = 1 + int(np.argmax(found.mean[1:]))
        before = others[at - 1].values[others[at - 1].steps <= own.steps[-1]]
        is_ahead = len(before) > 0 and own.values[-1] >= before[-1]
        if is_ahead or found.share[0] >= LATEST:
            return False
        spread = math.sqrt(found.variance[0] + found.variance[at]) or 1e-300
        return bool(ndtr((found.mean[at] - found.mean[0]) / spread) > probability)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Learned parameters of the prior as tensors, by name."""
        return dict(self.named_buffers())


class Study:
    """Smoothed learning curves of the runs of one task.

    Each curve is evaluated at fixed shares of the full length (``KNOTS``) and at its own end.

    Args:
        curves: The curves.
        usual: The full length of other tasks, see :func:`full_length`.
    """

    def __init__(self, curves: Sequence[Curve], usual: float | None = None) -> None:
        self.full = full = full_length(curves, usual)
        first = min((curve.steps[0] for curve in curves), default=1.0)
        gap = min((gap for curve in curves for gap in np.diff(curve.steps[:2])), default=1.0)
        n, self.diverged = len(curves), np.array([c.diverged for c in curves], dtype=np.bool_)
        ends = np.array([curve.steps[-1] for curve in curves])
        done = [c.stopped is False or (c.stopped is None and c.steps[-1] >= full) for c in curves]
        self.complete = np.array(done, dtype=np.bool_) & ~self.diverged
        self.share = np.where(self.complete, 1.0, shares(ends, full, first, gap).clip(0.0, 1.0))
        self.last = np.array([curve.values[-1] for curve in curves])
        # An n x (k + 1) x 2 array of values and improvements, at the k knots and at the ends.
        points, count = np.full((n, len(KNOTS) + 1, 2), np.nan), np.zeros(n)
        for i in np.flatnonzero(~self.diverged).tolist():
            finite = np.isfinite(curves[i].values)
            at, values = shares(curves[i].steps[finite], full, first, gap), curves[i].values[finite]
            t, count[i] = np.append(KNOTS, self.share[i]), len(values)
            now, before = np.split(_smoothed(at, values, np.concatenate([t, t / 2])), 2)
            points[i] = np.stack([now, now - before], axis=-1)
        self.at_knots, self.at_end = points[:, :-1], points[:, -1]
        self.teaches = self.complete & (count >= ENOUGH_POINTS)

    def known(self) -> Forecast:
        """Returns the known final outcomes of complete runs, with NaN for all other runs."""
        mean = np.where(self.complete, self.last, np.nan)
        return Forecast(mean, np.where(self.complete, 0.0, np.nan), self.share)


def _smoothed(at: Values, values: Values, t: Values) -> Values:
    """Computes the moving average of a learning curve at some shares of the full length.

    Args:
        at: The shares at which the curve has values, ascending.
        values: The values of the curve.
        t: The shares at which the average is computed.

    Returns:
        For each share in ``t``, the mean of the latest values at or before this share; the first
        value of the curve if all values come after this share.
    """
    best = values.max()
    # Clips huge values of a run that nearly diverged, because they would make the sums imprecise.
    total = np.cumsum(np.maximum(values, best - 1e4 * (best - np.median(values))) - best)
    total = np.concatenate([[0.0], total])
    last = np.searchsorted(at, t + 1e-9, side="right").clip(1)
    first = np.searchsorted(at, t - WINDOW * t * (1 - t) + 1e-9, side="right")
    first = np.minimum(first, last - 1)
    return np.asarray(best + (total[last] - total[first]) / (last - first))


def _middle_and_spread(values: Values) -> tuple[Any, Any]:
    """Returns the median and the scaled median absolute deviation along the first axis."""
    middle = np.median(values, axis=0)
    return middle, 1.4826 * np.median(np.abs(values - middle), axis=0)


def _unit(usual: Values, seen: Values) -> tuple[Any, Any]:
    """Estimates the location and scale of a task's final outcomes.

    Args:
        usual: Means and variances over old tasks, from :func:`_usual_unit`.
        seen: Outcomes of the task along the first axis. With few outcomes, the estimates are
            close to the means over old tasks.

    Returns:
        The location and the scale.
    """
    log_scale, of_log_scale, center, of_center = usual
    if (n := len(seen)) == 0:
        return center, math.exp(log_scale)
    middle, spread = _middle_and_spread(seen)
    weight = np.where(spread > 0, of_log_scale / (of_log_scale + 2.0 / n), 0.0)
    scale = np.exp(log_scale + weight * (np.log(np.where(spread > 0, spread, 1.0)) - log_scale))
    weight = of_center / (of_center + 1.6 * scale**2 / n)
    return center + weight * (middle - center), scale


def _usual_unit(finals: Sequence[Values]) -> Values:
    """Computes how the location and the scale of final outcomes vary between tasks.

    Args:
        finals: The final outcomes of each task.

    Returns:
        Four numbers: the mean and variance of the scale's logarithm, and the median and variance of
        the location.
    """
    centers, spreads = np.array([_middle_and_spread(final) for final in finals]).T
    scales = spreads[spreads > 0]
    if len(scales) == 0:
        scales = np.array([np.std(np.concatenate(finals)) or np.abs(centers).max() or 1.0])
    logs, center = np.log(scales), np.median(centers)
    of_log_scale = (np.sum((logs - logs.mean()) ** 2) + 0.5) / len(logs)
    of_center = np.mean((centers - center) ** 2) + np.exp(2 * logs.mean()) / len(centers)
    return np.array([logs.mean(), of_log_scale, center, of_center])


def _features(points: Values, center: Any, scale: Any) -> tuple[Values, Values, Values]:
    """Computes the regressors of the final outcome from values and improvements of curves.

    Args:
        points: A ``... x 2`` array of smoothed values and their improvements.
        center: The location of the task's final outcomes.
        scale: The scale of the task's final outcomes.

    Returns:
        A ``... x 3`` array of ones, standardized values and standardized improvements; a ``...``
        array of first predictions of the final outcome, which the regression corrects; and a
        ``...`` array of factors by which the noise variance is multiplied.
    """
    u, d = (points[..., 0] - center) / scale, points[..., 1] / scale
    inside = u.clip(LEAST[0], MOST[0])
    x = np.stack([np.ones_like(u), inside, d.clip(LEAST[1], MOST[1])], axis=-1)
    return x, (u + inside) / 2, 1.0 + np.minimum(inside, 0.0) ** 2


#: Sufficient statistics of a task at all knots, see :func:`_sums`.
Sums = tuple[Values, Values, Values, int]


def _sums(study: Study, unit: tuple[float, float], learned: Mapping[str, Values]) -> Sums:
    """Computes the sufficient statistics of the regression of a task's final outcomes.

    Args:
        study: The curves of the task.
        unit: The location and scale of the task's final outcomes.
        learned: The parameters of the previous round. Runs whose residual under these parameters is
            large get smaller weights, as with Student-t errors.

    Returns:
        For each knot, the sums of ``xxᵀ``, ``xy`` and ``y²`` over complete runs with regressors
        ``x`` and final outcomes ``y``; and the number of these runs.
    """
    x, level, factor = _features(study.at_knots[study.teaches], *unit)
    y = ((study.last[study.teaches, None] - unit[0]) / unit[1] - level).clip(-4.0, 4.0)
    variance = np.sum(x**2 * learned["task_variance"], axis=-1) + learned["noise"] * factor
    rest = y - np.sum(x * learned["coefficients"], axis=-1)
    weight = (DEGREES + 1) / (DEGREES + rest**2 / variance) / factor
    A = np.einsum("nk,nki,nkj->kij", weight, x, x)
    return A, np.einsum("nk,nki,nk->ki", weight, x, y), np.sum(weight * y**2, axis=0), len(y)


def _conditioned(A: Values, c: Values, learned: Mapping[str, Values]) -> tuple[Values, Values]:
    """Computes the posterior mean and covariance of a task's regression coefficients.

    Args:
        A: The sums of ``xxᵀ`` from :func:`_sums`.
        c: The sums of ``xy`` from :func:`_sums`.
        learned: The prior of the coefficients, and the noise variance.

    Returns:
        The means and the covariances.
    """
    w, D = learned["coefficients"], learned["task_variance"]
    noise = learned["noise"][:, None]
    S = np.linalg.inv(A / noise[..., None] + np.eye(3) / D[:, None, :])
    return np.asarray(np.einsum("...ij,...j->...i", S, c / noise + w / D)), np.asarray(S)


def _squares(A: Values, c: Values, s: Values, b: Values) -> Values:
    """Computes the sum of squared residuals of a regression with coefficients ``b``.

    The other arguments are the sums that :func:`_sums` returns.
    """
    return np.asarray(s - 2 * np.sum(c * b, axis=-1) + np.einsum("...i,...ij,...j", b, A, b))


_START = {
    "coefficients": np.zeros((len(KNOTS), 3)),
    "task_variance": USUAL_VARIANCE * (1 - KNOTS)[:, None] ** 2,
    "noise": np.full(len(KNOTS), 0.1),
}


def _maximized(sums: Sequence[Sums]) -> dict[str, Values]:
    """Fits the hierarchical regression of all tasks by expectation maximization, at all knots."""
    A, c, s, n = (np.stack(part) for part in zip(*sums, strict=True))
    num_tasks, (w, usual, noise) = len(A), _START.values()
    D = usual
    for _ in range(NUM_STEPS):
        b, S = _conditioned(A, c, {"coefficients": w, "task_variance": D, "noise": noise})
        w = b.mean(axis=0)
        squares = (b - w) ** 2 + np.einsum("mkii->mki", S)
        D = (squares.sum(axis=0) + usual) / (num_tasks + 1)
        misfit = _squares(A, c, s, b) + np.einsum("mkij,mkji->mk", A, S)
        noise = (misfit.sum(axis=0).clip(0.0) + 1e-3) / n.sum()
    return {"coefficients": w, "task_variance": D * (1 + 1 / num_tasks), "noise": noise}


def _learned(studies: Sequence[Study]) -> dict[str, Values]:
    """Learns the parameters of a :class:`CurvePrior` from old tasks.

    The variances are scaled so that predicted 90 % intervals cover 90 % of the final outcomes of
    left-out tasks.
    """
    finals = [study.last[study.teaches] for study in studies]
    usual, num_folds = _usual_unit(finals), min(len(studies), MAX_FOLDS)
    units, learned = [_unit(usual, final) for final in finals], _START
    for _ in range(NUM_REWEIGHTED):
        sums = [_sums(s, unit, learned) for s, unit in zip(studies, units, strict=True)]
        learned = _maximized(sums)
    folds = range(num_folds if num_folds > 1 else 0)
    left = [_maximized([a for j, a in enumerate(sums) if j % num_folds != f]) for f in folds]
    errors, weights = list[Values](), list[Values]()
    for i, study in enumerate(studies if left else ()):
        theirs = left[i % num_folds]
        points = study.at_knots[study.teaches]
        seen = points[np.linspace(0, len(points) - 1, min(NUM_SEEN, len(points))).astype(int)]
        D = theirs["task_variance"][..., None] * np.eye(3)
        unit = _unit(usual, seen[..., 0])
        mean, variance = _moments(points, unit, theirs["coefficients"], D, theirs["noise"])
        errors.append(np.abs(finals[i][:, None] - mean) / np.sqrt(variance))
        weights.append(np.full(len(points), 1 / len(points)))
    factor = np.full(len(KNOTS), 3.0)
    if errors:
        z, weight = np.concatenate(errors), np.concatenate(weights)
        order = np.argsort(z, axis=0)
        covered = np.cumsum(weight[order], axis=0) / weight.sum()
        at = np.take_along_axis(z, order, axis=0)[(covered < 0.9).sum(axis=0), range(len(KNOTS))]
        factor = (at / WIDTH_90).clip(0.5, 10.0) ** 2
    # A single old task may be the new study itself. Its residuals must not count twice.
    learned = {"unit": usual, **learned, "trust": np.array(TRUST if errors else 1e9)}
    for name in ("task_variance", "noise"):  # neither variance may grow along the curve
        scaled = (learned[name].T * factor)[..., ::-1]
        learned[name] = np.maximum.accumulate(scaled, axis=-1)[..., ::-1].T.copy()
    return learned


def _moments(
    points: Values, unit: tuple[Any, Any], w: Values, S: Values, noise: Values
) -> tuple[Values, Values]:
    """Computes the mean and variance of predicted final outcomes.

    Args:
        points: A ``... x 2`` array of smoothed values and their improvements.
        unit: The location and scale of the task's final outcomes.
        w: The mean of the regression coefficients.
        S: The covariance of the regression coefficients.
        noise: The noise variance. It is multiplied by the factors that :func:`_features` returns.

    Returns:
        The means and the variances, in the unit of the outcomes.
    """
    (center, scale), (x, level, factor) = unit, _features(points, *unit)
    variance = np.einsum("...i,...ij,...j->...", x, S, x) + noise * factor
    variance = variance + (level - x[..., 1]) ** 2  # zero for values within the bounds
    mean: Values = center + scale * (level + np.sum(x * w, axis=-1))
    return mean, np.asarray(scale**2 * variance)


# ------------------------------------------------------------------------------- tables with curves

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

    def compare_lengths(self, old: Sequence[Curve], own: Sequence[Curve], usual: Any) -> None:
        """Warns if this study's full length is far from the full lengths of all old tasks.

        A short full length causes no warning if a run is marked as complete, or if all runs are
        marked as stopped.

        Args:
            old: The old curves.
            own: This study's curves.
            usual: The usual full length, see :func:`full_length`.
        """
        full, states = full_length(own, usual), {curve.stopped for curve in own}
        lengths = [full_length([c for c in old if c.task == t]) for t in {c.task for c in old}]
        nearest = np.clip(full, min(lengths), max(lengths))
        if full > 2 * nearest or (2 * full < nearest and None in states and False not in states):
            text = "%r ends at %g in this study's learning curves, but at %g in old curves: use "
            text += "one unit of steps, and set %r to 'stopped' for incomplete runs"
            logger.warning(text, self.step, full, nearest, self.status)


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
        known = Study(self.curves).known
        return known() if self.prior is None else self.prior.forecast(self.curves)


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
        The tables have a column with the variances of predicted outcomes (:func:`variance_column`).
        Without any complete run, no outcome can be predicted, and this study's partial runs are
        pending. An old partial run is left out if its outcome cannot be predicted, or if the
        standard error of the prediction is too large (:data:`SURE`).

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
            if old and not found:
                columns.compare_lengths(old, own, prior and float(prior.length))
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
    is_stopped = np.isin(np.arange(len(table)), [curve.row for curve in curves if curve.stopped])
    fate = table[FATE].mask(is_stopped & (table[FATE] == "ended"), "")  # may get an outcome
    replaced = {outcome.name: Series(cells, table.index).infer_objects(), FATE: fate}
    table = table.assign(**replaced, **{variance_column(outcome.name): variance})
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
        sign: 1 if large outcomes are good, -1 if small outcomes are good. The curves contain the
            outcome, or its logarithm, times ``sign``.
        log: Whether the curves contain the outcome's logarithm.
        sure: The largest allowed standard error of a predicted outcome, in standard deviations of
            the outcomes of the task's complete runs.

    Returns:
        The outcomes and their variances in the order of the curves. An outcome is NaN if its
        standard error is too large, and infinite if the run diverged. With ``log``, the variances
        are variances of logarithms, but the outcomes are not logarithms.
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
        text = "No learning curve is complete: %d runs get no predicted outcome"
        is_single = all(len(curve.steps) < 2 for curve in curves)
        logger.warning(text + ". Each run has one step: check run=" * is_single, count)
    return np.where(np.isfinite(mean) & log, np.exp(sign * mean), sign * mean), variance
