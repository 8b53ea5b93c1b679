r"""``CurvePrior``: how the final outcome follows from a part of the learning curve.

At a share ``t`` of the full length, with the smoothed value ``u`` and the improvement ``d`` since
``t / 2``, both in units of the task's complete outcomes, the final outcome is

.. code-block:: text

    f = u + (w + b)ᵀ (1, u, d) + e        b ~ N(0, D),  e ~ N(0, σ² (1 + min(u, 0)²))

with ``w`` for all tasks and ``b`` of each task: its own shift and slopes. ``w``, ``D`` and ``σ²``
are learned at some shares by expectation maximization; a run takes the values of the nearest share.
A factor on ``D`` and ``σ²`` makes nine in ten outcomes of left-out tasks lie in their 90 % band.
Complete runs of the new study condition its ``b``; they themselves have their own outcome. Their
residuals, with the distance of ``b`` from zero, tell a factor on all variances of the study: above
one where the history misleads, below one where its tasks are noisier than the new one.
"""

from __future__ import annotations

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

from botorch_transfer.data.measurements import numbers, refuse_cell
from botorch_transfer.saving import Saved

Values = NDArray[np.float64]

STOPPED = ("stopped", "pruned", "early_stopped", "early stopped")
"""Words of the status of a run that was stopped early, in upper or lower case."""

COMPLETE = ("complete", "completed", "finished", "done")
"""Words of the status of a run that came to its end."""

DIVERGED = 1e100
"""Outcomes so large count as diverged, as infinite ones do: their squares overflow."""

KNOTS: Values = np.array(
    [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
)
"""The shares of the full length at which the prior is learned."""

WINDOW = 0.2
"""The last share of a curve that is averaged; it shrinks to the last value at the full length."""

LEAST, MOST = np.array([-4.0, -1.0]), np.array([3.0, 4.0])
"""Bounds of value and improvement; of what a value lies beyond, half is expected to stay."""

USUAL_VARIANCE = np.array([0.1, 0.05, 0.1])
"""The variance of a task's own coefficients to expect; it counts as much as one task."""

NUM_SEEN, NUM_STEPS, MAX_FOLDS = 3, 30, 20
"""Runs of a left-out task that tell its unit; steps of a fit; how many groups are left out."""

MAX_COMPLETE = 30
"""The most complete runs to learn from when it has to be quick; the last ones."""

DEGREES, NUM_REWEIGHTED = 4.0, 3
"""Degrees of freedom of Student's errors; how often outliers are found anew."""

TRUST = 2.0
"""Weight of the spread of other tasks, in complete runs of the study."""

LATEST = 0.9
"""The share of the full length from which on a run may as well end."""

ENOUGH_POINTS = 3
"""The fewest points of a complete curve to learn from."""

WIDTH_90 = 1.6449
"""Half the width of a 90 % band, in standard deviations."""


# ------------------------------------------------------------------------------------------- curves


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
        """Returns the curve of the outcome's logarithm; NaN where it has none."""
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
        run: The columns whose values are the same in all rows of a run, which may be in any order
            if each step is there once; else a new run starts where the step does not grow. By
            default it starts only there, so that a run's rows follow one another.
        status: The column with the state of a run; it may be absent.

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
    problem = ", which is no number: correct it, or empty the cell of a run without a curve"
    refuse_cell(bad, frame[step], problem)
    values = numbers(frame, outcome)
    values = np.where(np.abs(values) < DIVERGED, values, np.nan)
    values = values if goal == "max" else -values
    states = frame.get(status, Series("", index=frame.index)).astype(str).str.strip().str.lower()
    group: NDArray[Any] = np.zeros(len(frame), dtype=np.intp)
    if keys:
        group = frame.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    twice = DataFrame({"group": group, "step": steps}).duplicated(keep=False).to_numpy()
    in_order = np.isin(group, group[twice & np.isfinite(steps)]) | (not run)
    order = np.lexsort((np.where(in_order, 0.0, steps), group))
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
    """Returns the step at which the runs of a task are complete.

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


# ---------------------------------------------------------------------------------------- the prior


class Forecast(NamedTuple):
    """Expected final outcomes of ``n`` runs, to be maximized.

    Args:
        mean: An ``n`` array of means; NaN for runs that diverged.
        variance: An ``n`` array of variances; zero for complete runs.
        share: An ``n`` array of the shares of the full length that have been seen.
    """

    mean: Values
    variance: Values
    share: Values


class CurvePrior(Saved):
    """Model of final outcomes given partial learning curves, learned from old tasks.

    Use it to predict the outcome of a run that was stopped early, or is still running. A saved file
    contains no outcomes.

    Args:
        config: The names of columns and the goal, as :meth:`fit` takes them.
        tensors: Learned values, by name.

    Example:
        >>> from pandas import DataFrame
        >>> rows = [("monday", run, k, run + 1 / k) for run in range(5) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "run", "epoch", "loss"])
        >>> prior = CurvePrior.fit(old, outcome="loss", step="epoch", goal="min")
        >>> prior.predict(DataFrame({"epoch": [1, 2], "loss": [3.0, 2.5]}))["share"].tolist()
        [0.2]
    """

    length: Tensor

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
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
        """Learns from the complete curves of a table; others are left out.

        Args:
            frame: The table, one row a step.
            outcome: The column of the outcome.
            step: The column of the step; tasks may have different lengths and spacings.
            goal: Whether small or large outcomes are good.
            task: The column of the task; ``None`` if all runs belong to one task.
            run: The columns whose values are the same in all rows of a run; by default a run's rows
                follow one another.
            status: The column with the state of a run; it may be absent.

        Returns:
            The prior.

        Raises:
            InputDataError: If a column is missing, or no run is complete.
            ValueError: If the goal is something else.
        """
        config = {"outcome": outcome, "step": step, "goal": goal, "run": run, "status": status}
        curves = read_curves(frame, outcome, step, goal, task, run, status)
        if (prior := cls.of_curves(curves, config)) is None:
            raise InputDataError("No learning curve is complete: there is nothing to learn from.")
        return prior

    @classmethod
    def of_curves(
        cls, curves: Sequence[Curve], config: dict[str, Any] | None = None
    ) -> Self | None:
        """Learns from curves that have been read already.

        Args:
            curves: The curves of all tasks.
            config: The names of columns and the goal, if there is a table.

        Returns:
            The prior; ``None`` if no run is complete.
        """
        tasks: dict[str, list[Curve]] = {}
        for curve in curves:
            tasks.setdefault(curve.task, []).append(curve)
        read = [Study(task) for task in tasks.values()]
        known = [study for study in read if study.teaches.any()]
        if not known:
            return None
        found = {**_learned(known), "length": np.median([study.full for study in read])}
        return cls(config or {}, {name: torch.as_tensor(value) for name, value in found.items()})

    def read(self, table: DataFrame, task: str | None = None) -> list[Curve]:
        """Reads the curves of a table with the columns that the prior was fitted to."""
        return read_curves(table, task=task, **self.config)

    def predict(self, runs: DataFrame) -> DataFrame:
        """Predicts the final outcomes of the runs of one task, from a table with one row a step.

        Args:
            runs: The table, with the columns that the prior was fitted to, but for the task.

        Returns:
            The last row of each run, with ``predicted_mean`` and ``predicted_std`` of its final
            outcome in the outcome's unit, and ``share``, how much of the full length it has seen.
            Complete runs have their own outcome and no uncertainty; diverged runs have NaN.

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
        """Predicts the final outcomes of the runs of one task, to be maximized.

        Args:
            curves: All curves of the task that there are; complete ones tell its shift and slopes.

        Returns:
            The moments.
        """
        study = Study(curves, float(self.length))
        learned = {name: buffer.double().cpu().numpy() for name, buffer in self.named_buffers()}
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

    def is_hopeless(self, own: Curve, others: Sequence[Curve], probability: float = 0.95) -> bool:
        """Decides whether a run will probably end worse than the best one of its task.

        The best one is the best complete run; without a complete run, the run with the best
        prediction. A run that is better than the best one was at the same step is not hopeless, nor
        is the only run, nor one that is nearly complete.

        Args:
            own: The curve of the run.
            others: The curves of the task's other runs.
            probability: The probability from which on it is hopeless.

        Returns:
            Whether it is. A run that has diverged is.
        """
        if own.diverged:
            return True
        others = [curve for curve in others if not curve.diverged]
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
        """Learned values, by name."""
        return dict(self.named_buffers())


class Study:
    """The curves of one task, at the knots and at their ends.

    Args:
        curves: The curves.
        usual: The full length of other tasks.
    """

    def __init__(self, curves: Sequence[Curve], usual: float | None = None) -> None:
        self.full = full = full_length(curves, usual)
        first = min((curve.steps[0] for curve in curves), default=1.0)
        gap = min((gap for curve in curves for gap in np.diff(curve.steps[:2])), default=1.0)
        n, self.diverged = len(curves), np.array([c.diverged for c in curves], dtype=np.bool_)
        ends = np.array([curve.steps[-1] for curve in curves])
        finished = [
            c.stopped is False or (c.stopped is None and c.steps[-1] >= full) for c in curves
        ]
        self.complete = np.array(finished, dtype=np.bool_) & ~self.diverged
        self.share = np.where(self.complete, 1.0, shares(ends, full, first, gap).clip(0.0, 1.0))
        self.last = np.array([curve.values[-1] for curve in curves])
        # Values and improvements, n x k x 2, at the knots and at the ends.
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
        """Returns the outcomes of complete runs, which are known without a prior."""
        mean = np.where(self.complete, self.last, np.nan)
        return Forecast(mean, np.where(self.complete, 0.0, np.nan), self.share)


def _smoothed(at: Values, values: Values, t: Values) -> Values:
    """Averages the last part of a curve up to some shares; the first value before it."""
    best = values.max()
    # Early values of a run that nearly diverged would take the sums' precision.
    total = np.cumsum(np.maximum(values, best - 1e4 * (best - np.median(values))) - best)
    total = np.concatenate([[0.0], total])
    last = np.searchsorted(at, t + 1e-9, side="right").clip(1)
    first = np.searchsorted(at, t - WINDOW * t * (1 - t) + 1e-9, side="right")
    first = np.minimum(first, last - 1)
    smoothed: Values = best + (total[last] - total[first]) / (last - first)
    return smoothed


def _middle_and_spread(values: Values) -> tuple[Any, Any]:
    """Returns the median and spread over the first axis, which outliers hardly change."""
    middle = np.median(values, axis=0)
    return middle, 1.4826 * np.median(np.abs(values - middle), axis=0)


def _unit(usual: Values, seen: Values) -> tuple[Any, Any]:
    """Estimates location and scale of a task from the usual ones and some outcomes, first axis."""
    log_scale, of_log_scale, center, of_center = usual
    n = len(seen)
    if n == 0:
        return center, math.exp(log_scale)
    middle, spread = _middle_and_spread(seen)
    weight = np.where(spread > 0, of_log_scale / (of_log_scale + 2.0 / n), 0.0)
    scale = np.exp(log_scale + weight * (np.log(np.where(spread > 0, spread, 1.0)) - log_scale))
    weight = of_center / (of_center + 1.6 * scale**2 / n)
    return center + weight * (middle - center), scale


def _usual_unit(finals: Sequence[Values]) -> Values:
    """Returns mean and variance over tasks of the logarithm of the scale, and of the location."""
    centers, spreads = np.array([_middle_and_spread(final) for final in finals]).T
    scales = spreads[spreads > 0]
    if len(scales) == 0:
        scales = np.array([np.std(np.concatenate(finals)) or np.abs(centers).max() or 1.0])
    logs, center = np.log(scales), np.median(centers)
    of_log_scale = (np.sum((logs - logs.mean()) ** 2) + 0.5) / len(logs)
    of_center = np.mean((centers - center) ** 2) + np.exp(2 * logs.mean()) / len(centers)
    return np.array([logs.mean(), of_log_scale, center, of_center])


def _features(points: Values, center: Any, scale: Any) -> tuple[Values, Values, Values]:
    """Returns features of values and improvements in a task's units.

    Args:
        points: A ``... x 2`` array of values and improvements.
        center: The task's location.
        scale: Its scale.

    Returns:
        A ``... x 3`` array of ones, values and improvements; and ``...`` arrays: what is expected
        if nothing improves, and the factor of the noise variance.
    """
    u, d = (points[..., 0] - center) / scale, points[..., 1] / scale
    inside = u.clip(LEAST[0], MOST[0])
    x = np.stack([np.ones_like(u), inside, d.clip(LEAST[1], MOST[1])], axis=-1)
    return x, (u + inside) / 2, 1.0 + np.minimum(inside, 0.0) ** 2


def _sums(
    study: Study, unit: tuple[float, float], learned: Mapping[str, Values]
) -> tuple[Values, Values, Values, int]:
    """Sums over the complete runs of a task: of ``xxᵀ``, ``xy`` and ``y²``; and their number.

    Outliers from what is known so far count less, as in a regression with Student's errors.
    """
    x, level, factor = _features(study.at_knots[study.teaches], *unit)
    y = ((study.last[study.teaches, None] - unit[0]) / unit[1] - level).clip(-4.0, 4.0)
    variance = np.sum(x**2 * learned["task_variance"], axis=-1) + learned["noise"] * factor
    rest = y - np.sum(x * learned["coefficients"], axis=-1)
    weight = (DEGREES + 1) / (DEGREES + rest**2 / variance) / factor
    A = np.einsum("nk,nki,nkj->kij", weight, x, x)
    return A, np.einsum("nk,nki,nk->ki", weight, x, y), np.sum(weight * y**2, axis=0), len(y)


def _conditioned(A: Values, c: Values, learned: Mapping[str, Values]) -> tuple[Values, Values]:
    """Returns the posterior mean and covariance of the coefficients of tasks from their sums."""
    w, D = learned["coefficients"], learned["task_variance"]
    noise = learned["noise"][:, None]
    S = np.linalg.inv(A / noise[..., None] + np.eye(3) / D[:, None, :])
    mean: Values = np.einsum("...ij,...j->...i", S, c / noise + w / D)
    return mean, np.asarray(S)


def _squares(A: Values, c: Values, s: Values, b: Values) -> Values:
    """Returns the sum of the squares of the residuals of coefficients, from the sums of tasks."""
    squares: Values = s - 2 * np.sum(c * b, axis=-1) + np.einsum("...i,...ij,...j", b, A, b)
    return squares


_START = {
    "coefficients": np.zeros((len(KNOTS), 3)),
    "task_variance": USUAL_VARIANCE * (1 - KNOTS)[:, None] ** 2,
    "noise": np.full(len(KNOTS), 0.1),
}


def _maximized(sums: Sequence[tuple[Values, Values, Values, int]]) -> dict[str, Values]:
    """Expectation maximization of the hierarchical regression, at all knots at once."""
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
    """Learns from tasks, and widens the bands until they hold for tasks that are left out."""
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
    # The runs of a single task may be the new study's own, which fit themselves.
    learned = {"unit": usual, **learned, "trust": np.array(TRUST if errors else 1e9)}
    for name in ("task_variance", "noise"):  # which shrink along the curve
        scaled = (learned[name].T * factor)[..., ::-1]
        learned[name] = np.maximum.accumulate(scaled, axis=-1)[..., ::-1].T.copy()
    return learned


def _moments(
    points: Values, unit: tuple[Any, Any], w: Values, S: Values, noise: Values
) -> tuple[Values, Values]:
    """Returns mean and variance of outcomes, from coefficients and noise at the points' shares."""
    (center, scale), (x, level, factor) = unit, _features(points, *unit)
    variance = np.einsum("...i,...ij,...j->...", x, S, x) + noise * factor
    variance = variance + (level - x[..., 1]) ** 2  # beyond the bounds
    mean: Values = center + scale * (level + np.sum(x * w, axis=-1))
    return mean, np.asarray(scale**2 * variance)
