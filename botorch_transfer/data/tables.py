"""From a table of old runs to source data: failed runs, changed search spaces, standard errors."""

from __future__ import annotations

import logging
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import SupervisedDataset
from numpy.typing import NDArray
from pandas import DataFrame, isna
from torch import Tensor

from botorch_transfer.data.columns import check_columns, renamed
from botorch_transfer.data.measurements import FATE, error_column, logarithms, measured, numbers
from botorch_transfer.data.outcome import Goal, Outcome
from botorch_transfer.data.units import wrong_units
from botorch_transfer.outcome_transforms import (
    EXTREME,
    best_gap,
    limit_outcomes,
    raise_worse_half,
    robust_limit,
)
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.cells import errors_in, rows_of_tasks, with_numbers
from botorch_transfer.search_space.parameters import plain
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)

ENOUGH_SAME, MOST = 3, 0.9
"""Number of a study's own runs in a task, and their share, by which the task is the study."""

MAX_COUNTED = 4
"""The most values to name in a log line."""

MANY_TIMES = 10.0
"""Ratio of the median to the best loss from which on a log line advises logarithms."""


@overload
def from_dataframe(
    frame: DataFrame, space: SearchSpace, outcome: str, task: str, *args: Any, **options: Any
) -> dict[str, SupervisedDataset]: ...


@overload
def from_dataframe(
    frame: DataFrame, space: SearchSpace, outcome: list[str], task: str, *args: Any, **options: Any
) -> dict[str, dict[str, SupervisedDataset]]: ...


def from_dataframe(
    frame: DataFrame,
    space: SearchSpace,
    outcome: str | list[str],
    task: str,
    goal: Goal | Sequence[Goal] = "max",
    failed: Literal["drop", "worst"] = "drop",
    noise: str | None = None,
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    changed: bool = False,
    log: bool = False,
    encode: Callable[[DataFrame], Tensor] | None = None,
    robust: bool | None = False,
    limit: float | None = None,
) -> dict[str, Any]:
    """Makes source data of a table with one row a run.

    Cells such as ``>95``, ``29*``, ``18 ± 2`` and ``n.d.`` are read, and codes such as -999 count
    as missing; see the page on source data. Runs without a finite outcome are dropped, or the
    failed ones get the worst finite outcome of their task. A task without any finite outcome is
    left out. One log line per call counts the runs and names the tasks.

    If the best losses are many times smaller than ordinary ones, differences between them are lost
    on the scale of the losses; consider ``log``. A log line advises it if the best loss is less
    than a tenth of the median one in half of the tasks or more.

    The search space may have changed since, see ``missing``, ``rename`` and ``changed``:

    - A parameter that a task does not record had one value, which ``missing`` gives. The task then
      carries no information about other values. Or its value is unknown: each run then gets another
      one, spread over the range, so that this task's outcomes do not depend on the parameter.
    - An empty cell of a choice is the value ``"none"``, if it is one; else the run is left out. So
      is, with ``changed``, a run with an empty cell of a number that each run has.
    - A number outside of its range keeps its place on the parameter's scale, outside of the unit
      cube. A number between the levels of a parameter keeps its place between them. A run is left
      out if its choice is no longer one, or if a logarithm does not reach its number. A warning in
      the log counts such runs.
    - Old runs carry no information about a new choice.

    Args:
        frame: The table.
        space: The search space of the table.
        outcome: Column with the outcome; a list for several outcomes.
        task: Column with the name of the task; names are compared as text.
        goal: Whether large (``"max"``) or small (``"min"``) outcomes are good, a list for several
            outcomes. Models maximize, so ``"min"`` changes the sign.
        failed: What to do with failed runs: ``"drop"`` them, or give them the task's ``"worst"``
            finite outcome, if a failure depends on the parameters.
        noise: Column with the standard error of the outcome (not the variance), in the outcome's
            unit; its square becomes ``Yvar``. An empty or zero standard error is the pooled one of
            the task's other runs. A task with an empty column has its noise inferred. A failed run
            that is kept has the largest standard error of its task.
        missing: Values of parameters that a task does not record (empty or absent column); ``None``
            if the value is not known.
        rename: New names of columns by their old ones.
        changed: Whether the search space has changed since the runs. If not, an unrecorded
            parameter that ``missing`` does not name is an error, and a warning counts the runs
            outside of the space. If it has, such a parameter counts as unknown, unless the table
            has a column of a similar name.
        log: Whether to take the outcome's natural logarithm. Standard errors become relative ones.
            Give the target's outcomes as logarithms, too.
        encode: Another encoding, for models whose inputs are not in the unit cube: a function from
            a table of runs that have a place in the space to an ``n x d`` tensor of inputs.
        robust: Whether outcomes far below their task's median are raised to a limit
            (:func:`~botorch_transfer.outcome_transforms.robust_limit`), so that diverged runs are
            just bad runs. If not, a warning in the log names tasks with an outcome very far below,
            unless it is ``None``.
        limit: The limit of an outcome that has one, in its unit; large values satisfy it if
            ``goal`` is ``"max"``. Only outcomes that violate it are limited robustly.

    Returns:
        Mapping from each task's name to its data set, in order of first appearance, in double
        precision. The features are named as in ``space.feature_names``, or by their number if
        ``encode`` is given; the outcome is named as the task, by which BoTorch distinguishes tasks.
        Of several outcomes, a mapping from outcomes to such mappings, as
        :func:`~botorch_transfer.transfer_models` takes it.

    Raises:
        InputDataError: If a column is missing, a run has no task, no run has a finite outcome, an
            outcome has no logarithm to take, a task lacks a parameter that ``missing`` doesn't
            name, a parameter's value is empty or of another kind, no run has a place in the search
            space, or a standard error is negative; or if ``frame`` is no table, has
            two columns of a name that is read, or one that is read as two things. The message names
            the task and the parameter.
        TypeError: If an argument is of another type.
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
    if isinstance(outcome, list):
        goals = [goal] * len(outcome) if isinstance(goal, str) else list(goal)
        if len(goals) != len(outcome):
            raise ValueError(f"There are {len(outcome)} outcomes and {len(goals)} goals.")
        options: dict[str, Any] = {"missing": missing, "rename": rename, "changed": changed}
        options |= {"log": log, "encode": encode, "robust": robust, "limit": limit}
        return {
            name: from_dataframe(frame, space, name, task, aim, failed, noise, **options)
            for name, aim in zip(outcome, goals, strict=True)
        }
    if goal not in ("max", "min"):
        raise ValueError(f"goal is {goal!r}: use 'max' or 'min'.")
    if failed not in ("drop", "worst"):
        raise ValueError(f"failed is {failed!r}: use 'drop' or 'worst'.")
    if not isinstance(space, SearchSpace):
        raise TypeError(
            f"The search space is a {type(space).__name__}: make a SearchSpace, for instance by "
            "search_space.guess_space(frame) or SearchSpace.from_dict."
        )
    for argument, names in {"missing": missing, "rename": rename}.items():
        if not isinstance(names, Mapping | None):
            raise TypeError(f"{argument} is {names!r}: give a dictionary with names as keys.")
    if log and limit is not None and limit <= 0:
        raise ValueError(f"limit is {limit}, which has no logarithm: leave log out.")
    check_table(frame, ())
    sign = 1.0 if goal == "max" else -1.0
    worst = limit if limit is None else sign * (math.log(limit) if log else limit)
    target = Outcome(outcome, sign, worst, noise, log)
    frame = renamed(frame, rename or {})
    named = {"outcome": outcome, "task": task} | ({} if noise is None else {"noise": noise})
    check_columns(frame, space, list(named.items()), missing or {}, changed)
    (frame,) = measured([frame], [target], None, task)
    options = {"changed": changed, "encode": encode, "robust": robust}
    old = read_history(frame, space, [target], task, missing, keep=failed == "worst", **options)
    if (found := old.sources[outcome]) is None:
        raise InputDataError(f"No run has a finite outcome in the column {outcome!r}{NO_DATA}")
    return found


NO_DATA = ": there are no source data in this table."


class OldRuns(NamedTuple):
    """Runs of old tasks with a place in a search space.

    Args:
        sources: By outcome the source data by task, to be maximized; ``None`` for an outcome
            without any finite value.
        failed: An ``f x d`` tensor of inputs of failed runs. Runs of a task in which none succeeded
            say nothing, nor do failed runs that lack a parameter's value.
    """

    sources: dict[str, dict[str, SupervisedDataset] | None]
    failed: Tensor | None


def read_history(
    frame: DataFrame,
    space: SearchSpace,
    outcomes: Sequence[Outcome],
    task: str,
    missing: Mapping[str, Any] | None = None,
    *,
    status: str | None = None,
    changed: bool = True,
    keep: bool = False,
    encode: Callable[[DataFrame], Tensor] | None = None,
    robust: bool | None = None,
) -> OldRuns:
    """Places the old runs of a table in a search space, for all outcomes at once.

    Args:
        frame: A table that :func:`~.measurements.measured` has read.
        space: The search space.
        outcomes: The outcomes.
        task: The column with the name of the task.
        missing: As :func:`from_dataframe` takes it, and so are the following arguments.
        status: The column with the state of a run; with ``None``, the failed runs are not placed.
            In a table without that column, runs without any outcome have failed.
        changed: Whether the search space may have changed.
        keep: Whether runs without an outcome get the worst one of their task.
        encode: Another encoding.
        robust: Whether very bad outcomes are limited; ``None`` if not, without a warning.

    Returns:
        The runs.

    Raises:
        InputDataError: As :func:`from_dataframe` does.
    """
    frame = with_numbers(frame, space.number_columns)
    for suspicion in (suspicions := wrong_units(frame, space, task)):
        logger.warning("Maybe another unit: %s", suspicion)
    Y, variance = modelled(frame, outcomes)
    is_finite, ended = np.isfinite(Y), (frame[FATE] == "ended").to_numpy()
    failed = has_failed(frame, Y)
    if status not in frame.columns:
        failed |= ~is_finite.any(axis=1) & ~ended
    sources: dict[str, dict[str, SupervisedDataset]] = {o.name: {} for o in outcomes}
    failed_inputs = [torch.empty(0, space.dim, dtype=torch.double)]
    notes, tasks = _Notes(), rows_of_tasks(frame[task])
    for name, rows in tasks.items():
        known = is_finite[rows].any(axis=1)
        if not known.any():
            continue
        runs = _fill(name, frame.iloc[rows], space, missing or {}, changed)
        if status is not None and (known & ~failed[rows]).any() and failed[rows].any():
            failed_inputs += _places(runs[failed[rows]], space)
        counts = known | (keep & ~ended[rows])
        X, has_place = _place(name, runs[counts], space, changed, notes)
        placed = rows[counts][has_place]
        X = X if encode is None or len(X) == 0 else encode(runs[counts][has_place])
        names = space.feature_names if encode is None else [f"x{i}" for i in range(X.shape[-1])]
        for i, outcome in enumerate(outcomes):
            finite = is_finite[placed, i]
            if not finite.any():
                continue
            every = torch.from_numpy(Y[rows[is_finite[rows, i]], i])
            far = every.max() - ((1 + EXTREME) * best_gap(every) or math.inf)
            lowest = robust_limit(every, limit=outcome.limit) if robust else -math.inf
            notes.limited += [name] * int((every < (lowest if robust else far)).sum())
            squares = variance[placed, i]
            values = np.where(finite, Y[placed, i], float(every.min()))
            squares = np.where(finite, squares, squares[finite].max())
            at = torch.from_numpy(finite | (keep & ~ended[placed]))
            Yvar = None if np.isnan(squares).any() else torch.from_numpy(squares)[at, None]
            known_Y, Yvar = limit_outcomes(torch.from_numpy(values)[at, None], lowest, Yvar)
            called: dict[str, Any] = {"feature_names": names, "outcome_names": [name]}
            sources[outcome.name][name] = SupervisedDataset(X[at], known_Y, Yvar=Yvar, **called)
    for i, outcome in enumerate(outcomes):
        without = [name for name, rows in tasks.items() if not is_finite[rows, i].any()]
        _log_outcomes(is_finite[:, i], outcome, keep, without, sources[outcome.name])
    notes.log(outcomes[0].name, robust, changed or encode is not None)
    if notes.displaced and not any(sources.values()):
        raise InputDataError(
            "No run is left, as all have a value that the search space has no place for: add it to "
            "the search space, or leave the table out."
            + "".join(f" Maybe another unit: {suspicion}." for suspicion in suspicions)
        )
    found = {name: tasks or None for name, tasks in sources.items()}
    return OldRuns(found, torch.cat(failed_inputs))


@dataclass
class _Notes:
    """Runs to name in the log, as pairs of a task and a row.

    Args:
        displaced: Runs without a place in the search space.
        lost: Columns and values without a place.
        outside: Runs outside of the unit cube.
        limited: Tasks of very bad outcomes.
    """

    displaced: list[tuple[str, Any]] = field(default_factory=list)
    lost: list[tuple[str, Any]] = field(default_factory=list)
    outside: list[tuple[str, Any]] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)

    def log(self, outcome: str, robust: bool | None, expected: bool) -> None:
        """Logs the notes; runs outside of the space are worth a warning if unexpected."""
        if self.limited and robust is not None:
            told = ", and count as just bad" if robust else ": consider robust=True"
            logger.log(
                logging.INFO if robust else logging.WARNING,
                "%d outcomes %r are far worse than a task's median%s (task %s)",
                len(self.limited),
                outcome,
                told,
                _counted(self.limited),
            )
        if self.displaced:
            cells = DataFrame(self.lost).groupby(0, sort=False)[1]
            logger.warning(
                "%d runs have a value that the search space has no place for, as %s: left out (%s)",
                len(self.displaced),
                "; ".join(f"{column!r} is {_counted(values)}" for column, values in cells),
                _some(self.displaced),
            )
        if self.outside:
            logger.log(
                logging.INFO if expected else logging.WARNING,
                "%d runs lie outside of the search space, and are kept where they are: check its "
                "ranges%s (%s)",
                len(self.outside),
                "" if expected else ", or say changed=True",
                _some(self.outside),
            )


def _place(
    name: str, runs: DataFrame, space: SearchSpace, changed: bool, notes: _Notes
) -> tuple[Tensor, NDArray[np.bool_]]:
    """Places the runs of a task: their inputs, and which of them have a place."""
    always = [p for p in space.parameters if p.is_numeric and p.active_if is None and changed]
    needed = [parameter.name for parameter in always]
    filled = runs[needed].notna().all(axis=1).to_numpy()
    X = torch.full((len(runs), space.dim), math.nan, dtype=torch.double)
    with errors_in(f"Task {name!r}"):
        X[torch.tensor(filled)] = space.place(runs[filled])
    has_place = X.isfinite().all(dim=-1).numpy()
    if not has_place.all():
        notes.lost += [(column, None) for column in needed for cell in runs[column] if isna(cell)]
        notes.lost += space.without_place(runs[filled & ~has_place])
        notes.displaced += [(name, row) for row in runs.index[~has_place]]
    beyond = ((X[has_place] < 0) | (X[has_place] > 1)).any(dim=-1).numpy()
    notes.outside += [(name, row) for row in runs.index[has_place][beyond]]
    return X[has_place], has_place


def without_own_runs(
    history: DataFrame, runs: DataFrame, space: SearchSpace, outcomes: Sequence[Outcome], task: str
) -> DataFrame:
    """Leaves out a task of old runs that are a study's own, as in one file of all campaigns.

    Args:
        history: Old runs.
        runs: The runs of the study; both tables have numbers as outcomes.
        space: The search space.
        outcomes: The outcomes.
        task: The column of ``history`` that names the task.

    Returns:
        The old runs without tasks that have three runs of the study or more: with outcomes that
        all differ, or almost all runs of the task.
    """
    names = [o.name for o in outcomes if o.name in history and o.name in runs]
    columns = [name for name in space.columns if name in history and name in runs] + names
    known = runs[runs[names].notna().any(axis=1)] if names else runs[:0]
    if len(known) < ENOUGH_SAME:
        return history
    own = set(known[columns].map(_written).agg("|".join, axis=1))
    kept, may_agree = np.ones((2, len(history)), dtype=np.bool_)
    for column in names:
        values, own_values = (t[column].to_numpy(np.float64) for t in (history, known))
        near = np.isclose(values[:, None], np.unique(own_values), 1e-11, 0.0, equal_nan=True)
        may_agree &= near.any(axis=1)
    for name, rows in rows_of_tasks(history[task]).items():
        old = history.iloc[rows[may_agree[rows]]]
        if len(old) < ENOUGH_SAME:
            continue
        same = old[old[columns].map(_written).agg("|".join, axis=1).isin(own)]
        different = same.drop_duplicates(columns)
        levels = max(different[column].nunique() for column in names)
        # Runs on a grid with a few levels of the outcome may agree by chance.
        count = history.iloc[rows][names].notna().any(axis=1).sum()
        is_all = levels > 1 and len(same) >= MOST * count
        if len(different) >= ENOUGH_SAME and (is_all or levels == len(different)):
            logger.warning(
                "Task %r of the history has %d of this study's own runs: the task is left out",
                name,
                len(same),
            )
            kept[rows] = False
    return history[kept]


def _written(cell: Any) -> str:
    """Writes a cell as text, so that 3, 3.0 and "3" are alike."""
    try:
        return str(cell) if isinstance(cell, bool) else f"{float(cell):.12g}"
    except (TypeError, ValueError):
        return str(cell)


def limit_task(
    task: SupervisedDataset, limit: float | None = None, by_rank: bool = False
) -> SupervisedDataset:
    """Raises the very bad outcomes of a task to its robust limit.

    Args:
        task: The task; its outcomes are maximized.
        limit: The least feasible outcome, if it has one.
        by_rank: Whether the worse half counts by rank
            (:func:`~botorch_transfer.outcome_transforms.raise_worse_half`).

    Returns:
        The task with limited outcomes; the same one if there is nothing to limit.

    Example:
        >>> X, Y = torch.rand(4, 1), torch.tensor([[4.0], [3.0], [2.0], [-1e6]])
        >>> task = SupervisedDataset(X, Y, feature_names=["x"], outcome_names=["y"])
        >>> limit_task(task).Y.flatten().tolist()
        [4.0, 3.0, 2.0, 0.0]
    """
    lowest = robust_limit(task.Y, limit=limit)
    Y, Yvar = limit_outcomes(task.Y, lowest, task.Yvar)
    Y = raise_worse_half(Y) if by_rank else Y
    if bool((Y == task.Y).all()):
        return task
    return SupervisedDataset(
        task.X,
        Y,
        Yvar=Yvar,
        feature_names=task.feature_names,
        outcome_names=task.outcome_names,
    )


def modelled(
    frame: DataFrame, outcomes: Sequence[Outcome]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Converts the outcomes of runs to modelled outcomes.

    Args:
        frame: A table that :func:`~.measurements.measured` has read; it may lack columns.
        outcomes: The outcomes.

    Returns:
        An ``n x m`` array of outcomes to be maximized, NaN or infinite where there is none, and
        another one of noise variances, NaN where there are none.

    Raises:
        InputDataError: If an outcome has no logarithm.
    """
    columns, squares = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
    for outcome in outcomes:
        noise = outcome.noise or error_column(outcome.name)
        values, errors = numbers(frame, outcome.name), numbers(frame, noise)
        if outcome.log:
            logs = logarithms(values, frame, outcome.name)
            errors, values = errors / np.where(np.isfinite(values), values, 1.0), logs
        columns.append(outcome.sign * values)
        squares.append(np.where(np.isfinite(values), errors**2, np.nan))
    return np.stack(columns, axis=1), np.stack(squares, axis=1)


def has_failed(frame: DataFrame, Y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Finds the failed runs of a table.

    Args:
        frame: A table that :func:`~.measurements.measured` has read.
        Y: An ``n x m`` array of its outcomes.

    Returns:
        An ``n`` array: whether a run has failed, or an outcome is infinite.

    Example:
        >>> from pandas import DataFrame
        >>> (frame,) = measured([DataFrame({"status": ["ok", "Failed"]})], [])
        >>> has_failed(frame, np.array([[0.5], [np.nan]])).tolist()
        [False, True]
    """
    return np.asarray(np.isinf(Y).any(axis=1)) | (frame[FATE] == "failed").to_numpy()


def _places(runs: DataFrame, space: SearchSpace) -> list[Tensor]:
    """Returns the inputs of the runs that have a place, one by one if one of them lacks a value."""
    try:
        X = space.place(runs)
    except InputDataError:
        if len(runs) == 1:
            return []
        return [X for row in range(len(runs)) for X in _places(runs.iloc[[row]], space)]
    return [X[~X.isnan().any(dim=-1)]]


def _fill(
    name: str, runs: DataFrame, space: SearchSpace, missing: Mapping[str, Any], changed: bool
) -> DataFrame:
    """Fills columns that this task lacks, or refuses it; ``encode`` checks conditional ones."""
    runs = runs.copy(deep=False)
    for parameter in space.parameters:
        column = parameter.name
        if column in runs and (parameter.may_be_empty or not runs[column].isna().all()):
            continue
        if missing.get(column) is not None:
            runs[column] = missing[column]
        elif column in missing or changed:
            values = unknown_values(parameter, len(runs), seed=f"{name}/{column}")
            runs[column] = values[column].to_numpy()
        elif parameter.active_if is None:
            raise InputDataError(
                f"Task {name!r} has no values of parameter {column!r}: give the value that it had "
                f"by missing={{{column!r}: ...}}, drop the task, or take the parameter out of the "
                "search space."
            )
    return runs


def unknown_values(parameter: Parameter, n: int, seed: str) -> DataFrame:
    """Draws values of a parameter for runs that do not record it.

    Each run gets another value, spread over the range. Whatever is learned from such runs then does
    not depend on the parameter.

    Args:
        parameter: The parameter.
        n: The number of runs.
        seed: What the draws depend on.

    Returns:
        A table with ``n`` rows and the columns of the parameter.
    """
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    unit = parameter.sample(n, rng)
    if unit.shape[1] == 1:  # one value in each of n equal parts of the range
        unit = ((rng.permutation(n) + rng.random(n)) / n)[:, None]
    return parameter.decode(unit)


def _counted(values: Iterable[Any]) -> str:
    """Returns the most frequent values with their numbers, and how many others there are."""
    counts = Counter("empty" if isna(value) else repr(plain(value)) for value in values)
    common = [f"{value} ({number:,})" for value, number in counts.most_common(MAX_COUNTED)]
    more = len(counts) - len(common)
    return ", ".join(common) + (f" and {more:,} more" if more else "")


def _some(runs: Sequence[tuple[str, Any]]) -> str:
    """Returns the tasks of runs, and the first row."""
    return f"task {_counted(name for name, _ in runs)}, from row {runs[0][1]} on"


def _differ_by_factors(losses: Sequence[NDArray[np.float64]]) -> bool:
    """Returns whether the median task's best loss is a small part of its median loss."""
    if min(map(np.min, losses), default=0.0) <= 0:
        return False
    return bool(np.median([np.median(Y) / Y.min() for Y in losses]) > MANY_TIMES)


def _log_outcomes(
    is_finite: NDArray[np.bool_],
    outcome: Outcome,
    keep: bool,
    without: Sequence[str],
    tasks: Mapping[str, SupervisedDataset],
) -> None:
    """Logs runs without an outcome, and advises logarithms where losses differ by factors."""
    if count := int((~is_finite).sum()):
        treatment = "those that failed get their task's worst one" if keep else "left out"
        message = f"{count:,} of {len(is_finite):,} runs have no finite outcome {outcome.name!r}"
        message += f": {treatment}"
        if without:
            message += f"; left out without any finite outcome: {', '.join(map(repr, without))}"
        logger.log(logging.WARNING if without else logging.INFO, message)
    losses = [-data.Y[:, 0].numpy() for data in tasks.values()]
    if outcome.goal == "min" and not outcome.log and _differ_by_factors(losses):
        logger.info(
            "The best %r of old tasks is less than a tenth of the median one: consider log=True "
            "(--log)",
            outcome.name,
        )
