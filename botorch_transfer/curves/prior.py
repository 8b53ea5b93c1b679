r"""``CurvePrior``: how the final outcome follows from a part of the learning curve.

At a share ``t`` of the full length, with the smoothed value ``u`` and the improvement ``d`` since
``t / 2``, both in units of the task's complete outcomes, the final outcome is

.. code-block:: text

    f = u + (w + b)ᵀ (1, u, d) + e        b ~ N(0, D),  e ~ N(0, σ² (1 + min(u, 0)²))

with ``w`` for all tasks and ``b`` of each task: its own shift and slopes. ``w``, ``D`` and ``σ²``
are learned at some shares by expectation maximization, and interpolated in between. They end at
zero: a complete run has its own outcome. A factor makes nine in ten outcomes of left-out tasks lie
in their 90 % band. Complete runs of the new study condition its ``b``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.outcome import OutcomeTransform
from pandas import DataFrame
from scipy.special import ndtr
from torch import Tensor

from botorch_transfer.curves.reading import Curve, Values, full_length, read_curves, shares
from botorch_transfer.prior import Saved, TransferPrior

KNOTS: Values = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
"""The shares of the full length at which the prior is learned."""

WINDOW = 0.2
"""The last share of a curve that is averaged; it shrinks to the last value at the full length."""

LEAST, MOST = np.array([-4.0, -1.0]), np.array([3.0, 4.0])
"""Bounds of value and improvement; of what a value lies beyond, half is expected to stay."""

USUAL_VARIANCE, USUAL_WEIGHT = np.array([0.1, 0.05, 0.1]), 1.0
"""The variance of a task's own coefficients to expect, and how many tasks that is worth."""

NUM_SEEN, NUM_STEPS, MAX_FOLDS = 3, 15, 20
"""Runs of a left-out task that tell its unit; steps of a fit; how many groups are left out."""

MAX_COMPLETE = 30
"""The most complete runs to learn from when it has to be quick; the last ones."""

LATEST = 0.9
"""The share of the full length from which on a run may as well end."""

ENOUGH_POINTS = 3
"""The fewest points of a complete curve to learn from."""

DEGREES, NUM_REWEIGHTED = 4.0, 2
"""Degrees of freedom of Student's errors; how often outliers are found anew."""

WIDTH_90 = 1.6449
"""Half the width of a 90 % band, in standard deviations."""


class Forecast(NamedTuple):
    """What the final outcomes of ``n`` runs are expected to be, to be maximized.

    Args:
        mean: An ``n`` array of means; NaN for runs that diverged.
        variance: An ``n`` array of variances; zero for complete runs.
        share: An ``n`` array of the shares of the full length that have been seen.
    """

    mean: Values
    variance: Values
    share: Values


class CurvePrior(TransferPrior):
    """How final outcomes follow from partial learning curves, learned from old tasks.

    Use it to tell what a run is worth that was stopped early, or is still running. A saved file
    contains no outcomes.

    Args:
        config: The names of columns and the goal, as :meth:`fit` takes them, and ``length``, the
            usual full length.
        tensors: What was learned, by name.

    Example:
        >>> from pandas import DataFrame
        >>> rows = [("monday", run, k, run + 1 / k) for run in range(5) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "run", "epoch", "loss"])
        >>> prior = CurvePrior.fit(old, outcome="loss", step="epoch", goal="min")
        >>> prior.predict(DataFrame({"epoch": [1, 2], "loss": [3.0, 2.5]}))["share"].tolist()
        [0.2]
    """

    units: Tensor
    coefficients: Tensor
    task_variance: Tensor
    noise: Tensor

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().__init__("raw")
        self.config = config
        for name in ("units", "coefficients", "task_variance", "noise"):
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
            task: The column of the task; ``None`` if all runs are of one task.
            run: The columns whose values are the same in all rows of a run; by default a run's rows
                follow one another.
            status: The column that says whether a run was stopped; it may be absent.

        Returns:
            The prior.

        Raises:
            InputDataError: If a column is missing, or no run is complete.
            ValueError: If the goal is something else.
        """
        if goal not in ("min", "max"):
            raise ValueError(f"goal is {goal!r}: use 'min' or 'max'.")
        keys = [run] if isinstance(run, str) else None if run is None else list(run)
        config = {"outcome": outcome, "step": step, "goal": goal, "run": keys, "status": status}
        return cls.of_curves(read_curves(frame, outcome, step, goal, task, run, status), config)

    @classmethod
    def of_curves(cls, curves: Sequence[Curve], config: dict[str, Any] | None = None) -> Self:
        """Learns from curves that have been read already.

        Args:
            curves: The curves of all tasks.
            config: The names of columns, if there is a table.

        Returns:
            The prior.

        Raises:
            InputDataError: If no run is complete.
        """
        tasks: dict[str, list[Curve]] = {}
        for curve in curves:
            tasks.setdefault(curve.task, []).append(curve)
        lengths = [full_length(task) for task in tasks.values()]
        read = [Study(task, full) for task, full in zip(tasks.values(), lengths, strict=True)]
        known = [study for study in read if study.teaches.any()]
        if not known:
            raise InputDataError("No learning curve is complete: there is nothing to learn from.")
        found = _learned(known)
        tensors = {name: torch.as_tensor(value) for name, value in found.items()}
        return cls({**(config or {}), "length": float(np.median(lengths))}, tensors)

    @classmethod
    def if_complete(cls, curves: Sequence[Curve]) -> Self | None:
        """Learns from curves if one of them is complete, else returns nothing."""
        try:
            return cls.of_curves(curves)
        except InputDataError:
            return None

    def read(self, table: DataFrame, task: str | None = None) -> list[Curve]:
        """Reads the curves of a table with the columns that the prior was fitted to."""
        named = {name: part for name, part in self.config.items() if name != "length"}
        return read_curves(table, task=task, **named)

    def predict(self, runs: DataFrame) -> DataFrame:
        """Predicts the final outcomes of the runs of one task, from a table with one row a step.

        Args:
            runs: The table, with the columns that the prior was fitted to, but for the task.

        Returns:
            The last row of each run, with ``predicted_mean`` and ``predicted_std`` of its final
            outcome in the outcome's unit, and ``share``, how much of the full length it has seen.
            Complete runs have their own outcome and no uncertainty; those that diverged NaN.

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
        study = Study(curves, full_length(curves, self.config["length"]))
        learned = {name: buffer.double().cpu().numpy() for name, buffer in self.named_buffers()}
        return _forecast(study, learned)

    def is_hopeless(self, own: Curve, others: Sequence[Curve], probability: float = 0.95) -> bool:
        """Says whether a run will end worse than the best one of its task, with some probability.

        The best is that of the complete runs; if there is none, the one with the best prediction. A
        run that is better than the best one was at the same step is not hopeless, nor is the only
        run, nor one that is nearly complete.

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

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """None: no model is built on this prior.

        Args:
            batch_shape: Ignored.
        """
        return None

    def _config(self) -> dict[str, Any]:
        return dict(self.config)

    @classmethod
    def _restore(cls, saved: Saved) -> Self:
        config = {name: part for name, part in saved.config.items() if name != "outcome_scale"}
        return cls(config, saved.tensors)


class Study:
    """The curves of one task, at the knots and at their ends.

    Args:
        curves: The curves.
        full: The task's full length.
    """

    def __init__(self, curves: Sequence[Curve], full: float) -> None:
        first = min((curve.steps[0] for curve in curves), default=1.0)
        gaps = [gap for curve in curves for gap in np.diff(curve.steps[:2])]
        gap = min(gaps, default=1.0)
        n, self.diverged = len(curves), np.array([c.diverged for c in curves], dtype=np.bool_)
        ends = np.array([curve.steps[-1] for curve in curves])
        self.share = shares(ends, full, first, gap).clip(0.0, 1.0) if n else np.empty(0)
        finished = [
            c.stopped is False or (c.stopped is None and c.steps[-1] >= full) for c in curves
        ]
        self.complete = np.array(finished, dtype=np.bool_) & ~self.diverged
        self.share[self.complete] = 1.0
        points = np.array([np.isfinite(curve.values).sum() for curve in curves])
        self.teaches = self.complete & (points >= ENOUGH_POINTS)
        self.last = np.array([curve.values[-1] for curve in curves])
        # Values and improvements: n x 2 x k, at the knots and at the ends.
        points = np.full((n, 2, len(KNOTS) + 1), np.nan)
        for i in np.flatnonzero(~self.diverged).tolist():
            finite = np.isfinite(curves[i].values)
            at, values = shares(curves[i].steps[finite], full, first, gap), curves[i].values[finite]
            t = np.append(KNOTS, self.share[i])
            now, before = np.split(_smoothed(at, values, np.concatenate([t, t / 2])), 2)
            points[i] = now, now - before
        self.at_knots, self.at_end = points[..., :-1], points[..., -1:]

    def known(self) -> Forecast:
        """What is known without a prior: the outcomes of complete runs."""
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


def _unit(usual: Values, seen: Values) -> tuple[Any, Any]:
    """Estimates location and scale of a task from the usual ones and some outcomes, first axis."""
    log_scale, of_log_scale, center, of_center = usual
    n = len(seen)
    if n == 0:
        return center, math.exp(log_scale)
    middle = np.median(seen, axis=0)
    spread = 1.4826 * np.median(np.abs(seen - middle), axis=0)
    weight = np.where(spread > 0, of_log_scale / (of_log_scale + 2.0 / n), 0.0) * (n > 1)
    scale = np.exp(log_scale + weight * (np.log(np.where(spread > 0, spread, 1.0)) - log_scale))
    weight = of_center / (of_center + 1.6 * scale**2 / n)
    return center + weight * (middle - center), scale


def _usual_units(finals: Sequence[Values]) -> Values:
    """Mean and variance over tasks of the logarithm of the scale, and of the location."""
    centers = np.array([np.median(final) for final in finals])
    scales = np.array([1.4826 * np.median(np.abs(f - np.median(f))) for f in finals])
    scales = np.where(scales > 0, scales, [np.std(final) for final in finals])
    if not (scales > 0).any():
        scales[:] = np.std(centers) or np.abs(centers).max() or 1.0
    logs, n = np.log(scales[scales > 0]), len(finals)
    spread = float(np.exp(logs.mean()))
    of_log = (np.sum((logs - logs.mean()) ** 2) + 0.5) / len(logs)
    of_center = (np.sum((centers - np.median(centers)) ** 2) + spread**2) / n
    return np.array([logs.mean(), of_log, np.median(centers), of_center])


def _design(points: Values, center: Any, scale: Any) -> tuple[Values, Values, Values, Values]:
    """Features of values and improvements in a task's units.

    Args:
        points: An ``n x 2 x k`` array of values and improvements.
        center: The task's location.
        scale: Its scale.

    Returns:
        The ``n x k x 3`` features, and ``n x k`` arrays: what is expected if nothing improves,
        the factor of the noise variance, and how far the value is beyond its bounds.
    """
    u, d = (points[:, 0] - center) / scale, points[:, 1] / scale
    inside = u.clip(LEAST[0], MOST[0])
    x = np.stack([np.ones_like(u), inside, d.clip(LEAST[1], MOST[1])], axis=-1)
    beyond = 0.5 * (u - inside)
    return x, inside + beyond, 1.0 + np.minimum(inside, 0.0) ** 2, beyond


def _statistics(
    study: Study, usual: Values, found: dict[str, Values] | None = None
) -> tuple[Values, Values, Values, int]:
    """Sums over the complete runs of a task: of ``xxᵀ``, ``xy`` and ``y²``; and their number.

    Once something was found, outliers count less, as in a regression with Student's errors.
    """
    finals = study.last[study.teaches]
    center, scale = _unit(usual, finals)
    x, level, factor, _ = _design(study.at_knots[study.teaches], center, scale)
    y = ((finals[:, None] - center) / scale - level).clip(-4.0, 4.0)
    if found is not None:
        rest = y - np.einsum("nki,ki->nk", x, found["coefficients"])
        variance = np.einsum("nki,ki->nk", x**2, found["task_variance"]) + found["noise"] * factor
        factor = factor * (DEGREES + rest**2 / variance) / (DEGREES + 1)
    weighted = x / factor[..., None]
    products = np.einsum("nki,nkj->kij", weighted, x), np.einsum("nki,nk->ki", weighted, y)
    return *products, np.einsum("nk,nk->k", y / factor, y), len(finals)


def _maximized(statistics: Sequence[tuple[Values, Values, Values, int]]) -> dict[str, Values]:
    """Expectation maximization of the hierarchical regression, at all knots at once."""
    A, c, s, n = (np.stack(part) for part in zip(*statistics, strict=True))
    num_tasks, eye = len(A), np.eye(3)
    usual = USUAL_VARIANCE * (1 - KNOTS + 1e-3)[:, None] ** 2
    D, noise = usual, np.full(len(KNOTS), 0.1)
    b = np.zeros_like(c)
    for _ in range(NUM_STEPS):
        right = np.sum(c - np.einsum("mkij,mkj->mki", A, b), axis=0)
        precision = A.sum(axis=0) / noise[:, None, None] + eye
        w = np.linalg.solve(precision, (right / noise[:, None])[..., None])[..., 0]
        S = np.linalg.inv(A / noise[:, None, None] + eye / D[:, None, :])
        rest = c - np.einsum("mkij,kj->mki", A, w)
        b = np.einsum("mkij,mkj->mki", S, rest) / noise[:, None]
        squares = np.sum(b**2 + np.einsum("mkii->mki", S), axis=0)
        D = (squares + USUAL_WEIGHT * usual) / (num_tasks + USUAL_WEIGHT)
        total = w + b
        misfit = s - 2 * np.einsum("mki,mki->mk", c, total)
        misfit += np.einsum("mki,mkij,mkj->mk", total, A, total) + np.einsum("mkij,mkji->mk", A, S)
        noise = (misfit.sum(axis=0).clip(0.0) + 1e-3) / n.sum()
    return {"coefficients": w, "task_variance": D * (1 + 1 / num_tasks), "noise": noise}


def _ending_at_zero(found: dict[str, Values], factor: Values) -> dict[str, Values]:
    """Makes variances shrink along the curve, and the last knot the outcome itself."""
    factor = np.where(KNOTS < 1, factor, 0.0)
    ended = {"coefficients": (found["coefficients"].T * (KNOTS < 1)).T}
    for name in ("task_variance", "noise"):
        scaled = (found[name].T * factor).T
        ended[name] = np.maximum.accumulate(scaled[::-1], axis=0)[::-1].copy()
    return ended


def _learned(studies: Sequence[Study]) -> dict[str, Values]:
    """Learns from tasks, and widens the bands until they hold for tasks that are left out."""
    finals = [study.last[study.teaches] for study in studies]
    usual, ones = _usual_units(finals), np.ones(len(KNOTS))
    statistics = [_statistics(study, usual) for study in studies]
    for _ in range(NUM_REWEIGHTED):
        found = _maximized(statistics)
        statistics = [_statistics(study, usual, found) for study in studies]
    errors, weights = list[Values](), list[Values]()
    num_folds = min(len(studies), MAX_FOLDS)
    for fold in range(num_folds if num_folds > 1 else 0):
        kept = [i for i in range(len(studies)) if i % num_folds != fold]
        theirs = _usual_units([finals[i] for i in kept])
        learned = _ending_at_zero(_maximized([statistics[i] for i in kept]), ones)
        for study, y in zip(studies[fold::num_folds], finals[fold::num_folds], strict=True):
            points = study.at_knots[study.teaches]
            seen = points[np.linspace(0, len(points) - 1, min(NUM_SEEN, len(points))).astype(int)]
            center, scale = _unit(theirs, seen[:, 0])
            mean, variance = _moments(points, center, scale, learned, KNOTS)
            errors.append(np.abs(y[:, None] - mean) / np.sqrt(variance + 1e-300))
            weights.append(np.full(len(y), 1 / len(y)))
    factor = 2.0 * ones
    if errors:
        z, weight = np.concatenate(errors), np.concatenate(weights)
        order = np.argsort(z, axis=0)
        covered = np.cumsum(weight[order], axis=0) / weight.sum()
        at = np.take_along_axis(z, order, axis=0)[(covered < 0.9).sum(axis=0), range(len(KNOTS))]
        factor = (at / WIDTH_90).clip(0.5, 10.0) ** 2
    return {"units": usual, **_ending_at_zero(_maximized(statistics), factor)}


def _moments(
    points: Values, center: Any, scale: Any, learned: dict[str, Values], share: Values
) -> tuple[Values, Values]:
    """Mean and variance in the outcome's unit, from what is known at the points' shares."""
    x, level, factor, beyond = _design(points, center, scale)
    covariance = learned["task_variance"]
    if covariance.ndim == 2:
        covariance = covariance[..., None] * np.eye(3)
    mean = level + np.sum(x * learned["coefficients"], axis=-1)
    variance = np.sum(np.einsum("nki,kij->nkj", x, covariance) * x, axis=-1)
    variance = variance + learned["noise"] * factor + (1 - share) * beyond**2
    return center + scale * mean, scale**2 * variance


def _forecast(study: Study, learned: dict[str, Values]) -> Forecast:
    """Conditions the task's coefficients on its complete runs, and predicts the others."""
    known = ~study.diverged
    center, scale = _unit(learned["units"], study.at_end[known][:, 0, 0])
    finals = study.last[study.teaches]
    x, level, factor, _ = _design(study.at_knots[study.teaches], center, scale)
    y = ((finals[:, None] - center) / scale - level).clip(-4.0, 4.0)
    weighted = x[:, :-1] / factor[:, :-1, None] / learned["noise"][:-1, None]
    precision = np.eye(3) / learned["task_variance"][:-1, None, :]
    posterior = np.linalg.inv(precision + np.einsum("nki,nkj->kij", weighted, x[:, :-1]))
    right = np.einsum("kij,kj->ki", precision, learned["coefficients"][:-1])
    right = right + np.einsum("nki,nk->ki", weighted, y[:, :-1])
    none = np.zeros((1, 3))
    at = {
        "coefficients": np.concatenate([np.einsum("kij,kj->ki", posterior, right), none]),
        "task_variance": np.concatenate([posterior, none[..., None] * none]),
        "noise": learned["noise"],
    }
    mean, variance, _ = study.known()
    for i in np.flatnonzero(known & ~study.complete):
        share = study.share[i]
        k = int(np.searchsorted(KNOTS, share, side="right").clip(1, len(KNOTS) - 1))
        part = float(np.clip((share - KNOTS[k - 1]) / (KNOTS[k] - KNOTS[k - 1]), 0.0, 1.0))
        here = {n: (1 - part) * a[k - 1 : k] + part * a[k : k + 1] for n, a in at.items()}
        moments = _moments(study.at_end[i : i + 1], center, scale, here, np.array([share]))
        mean[i], variance[i] = moments[0].item(), moments[1].item()
    return Forecast(mean, variance, study.share)
