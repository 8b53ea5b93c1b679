"""Converts a table of old runs to source data, and encodes the runs of a study.

Handles failed runs, changed search spaces and standard errors.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, cast, overload

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import SupervisedDataset
from numpy.typing import NDArray
from pandas import DataFrame, Series, isna, to_numeric
from pandas.api.types import is_numeric_dtype
from pandas.util import hash_pandas_object
from torch import Tensor

from botorch_transfer.data.columns import check_columns, renamed
from botorch_transfer.data.datasets import evenly_spaced, with_outcomes
from botorch_transfer.data.measurements import (
    FATE,
    Array,
    Goal,
    Outcome,
    error_column,
    logarithms,
    measured,
    numbers,
    variance_column,
)
from botorch_transfer.data.units import mixed_outcomes, wrong_units
from botorch_transfer.outcome_transforms import (
    EXTREME,
    another_unit,
    best_gap,
    limit_outcomes,
    raise_worse_half,
    ranks,
    robust_limit,
)
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.cells import (
    errors_in,
    likely_column,
    plain,
    rows_of_tasks,
    warn_of_spellings,
    with_known,
    with_numbers,
    without_summaries,
)
from botorch_transfer.search_space.guess import checked_goals
from botorch_transfer.search_space.space import check_arguments

logger = logging.getLogger(__name__)

#: A task of old runs is left out if at least ``ENOUGH_SAME`` of its runs are also runs of the
#: study. If two of these common runs have equal outcomes, the common runs must also be at least the
#: share ``MOST`` of the task's runs.
ENOUGH_SAME, MOST = 3, 0.9

#: Numbers with more decimals are not rounded.
MAX_DECIMALS = 8

#: A task that repeats another task is left out only if the repeating task has at least this number
#: of different outcomes or, with three or four runs, if no two of its outcomes are equal. Two tasks
#: with few different outcomes may be equal by chance.
ENOUGH_LEVELS = 5

#: Bounds of rank correlations of outcomes. A task of ``n`` runs counts as *reversed* if its
#: correlation with the other tasks is below ``REVERSED - 1.5 / n``, and if the median correlation
#: among the other tasks is above ``AGREED``. The outcomes of a reversed task may have a wrong sign.
#: If no outcome of the task is in the range of the other outcomes, ``APART`` is the bound.
REVERSED, APART, AGREED = -0.65, -0.3, 0.4

#: Reversed tasks, which may have outcomes of a wrong sign, are searched only if ``MIN_SEARCHED`` to
#: ``MAX_SEARCHED`` tasks have at least ``MIN_COMPARED`` runs each. The search compares at most
#: ``MAX_COMPARED`` runs of each task.
MIN_SEARCHED, MAX_SEARCHED, MIN_COMPARED, MAX_COMPARED = 3, 20, 5, 50

#: Distances of values from a parameter's range, relative to the width of the range. Values in the
#: runs of a study may be up to ``SLIGHTLY`` outside of the range. Distances up to ``SAME_PLACE``
#: are rounding errors.
SLIGHTLY, SAME_PLACE = 0.1, 1e-4

#: Maximum number of values in a log line.
MAX_COUNTED = 4

#: A log line recommends logarithms if, in at least half of the tasks, the median loss is more than
#: this many times the best loss.
MANY_TIMES = 10.0


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
    goal: Goal | Sequence[Goal] | None = None,
    failed: Literal["drop", "worst"] = "drop",
    noise: str | None = None,
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    changed: bool = False,
    log: bool = False,
    robust: bool | None = False,
) -> dict[str, Any]:
    """Converts a table with one row per run to source data.

    Cells such as ``>95``, ``29*`` and ``18 ± 2`` are converted to numbers. Cells such as ``n.d.``
    and codes such as -999 count as missing outcomes; see the page "Old runs as a table". Runs
    without a finite outcome are dropped. With ``failed="worst"``, failed runs get the worst finite
    outcome of their task instead. A task without any finite outcome is left out. One log line per
    call counts the runs without an outcome and names the tasks that are left out.

    If the best losses are many times smaller than ordinary losses, models cannot resolve the
    differences between good runs: consider ``log``. A log line recommends ``log`` if, in at least
    half of the tasks, the best loss is less than a tenth of the median loss.

    The search space may have changed since the old runs; see also ``missing``, ``rename`` and
    ``changed``. A *choice* is a value of a categorical parameter.

    - If a task does not record a parameter, ``missing`` gives the value that the parameter had in
      all runs of the task. The task then carries no information about other values. If the value is
      unknown, each run gets a random value, and these values are spread over the range. Models then
      see no effect of the parameter on the outcomes of the task.
    - An empty cell of a categorical parameter means ``"none"`` if the parameter has this choice;
      otherwise the run is left out. With ``changed``, a run is also left out if the cell of an
      unconditional numeric parameter is empty.
    - The encoding of a number outside of the parameter's range is extrapolated beyond the unit
      cube. The encoding of a number between two values of a discrete parameter is interpolated. A
      run is left out if one of its choices no longer exists, if the parameter's scale is
      logarithmic and a number has no logarithm, or if a number is a code of a missing value, such
      as -999. A warning in the log counts the runs that are left out.
    - Old runs carry no information about a new choice.

    Args:
        frame: The table.
        space: The search space of the table; also a list of parameters or a dictionary, see
            :meth:`SearchSpace.from_dict <.SearchSpace.from_dict>`.
        outcome: Column with the outcome; a list for several outcomes.
        task: Column with the name of the task; names are compared as text.
        goal: ``"max"`` if large outcomes are good, ``"min"`` if small outcomes are good; a list for
            several outcomes. The default is ``"max"``, but ``goal`` is required if an outcome has a
            name such as ``loss``. Models maximize, so ``"min"`` changes the sign.
        failed: ``"drop"`` drops failed runs. ``"worst"`` gives failed runs the worst finite outcome
            of their task; use it if failures depend on the parameters.
        noise: Column with the standard error of the outcome (not the variance), in the outcome's
            unit. The squared standard error is ``Yvar``. An empty or zero cell gets the pooled
            standard error of the task. If all cells of a task are empty, the model infers the noise
            variance. With ``failed="worst"``, a failed run gets the largest standard error of its
            task.
        missing: Values of parameters that a task does not record, by parameter name; ``None`` for
            an unknown value. A task does not record a parameter if the column is empty or absent.
        rename: Mapping from old to new names of columns.
        changed: Whether the search space has changed since the runs. This matters for a parameter
            that a task does not record and ``missing`` does not contain. ``False`` raises an error.
            ``True`` treats the parameter's value as unknown, unless the parameter's column is
            absent and another column has a similar name: this raises an error for ``True``, too.
            With ``False``, a warning counts the runs outside of the space.
        log: Whether to take the natural logarithm of the outcome. Standard errors are then divided
            by the outcomes. The target's outcomes must be logarithms, too.
        robust: Whether to clip very bad outcomes at a lower limit
            (:func:`~botorch_transfer.outcome_transforms.robust_limit`), so that diverged runs count
            as bad runs. ``False`` clips nothing, but logs a warning that names tasks with outcomes
            far below their median. ``None`` neither clips outcomes nor logs a warning.

    Returns:
        Mapping from each task's name to its data set, in order of first appearance, in double
        precision. Features are named by ``space.feature_names``. Each data set's outcome has the
        name of the task, because BoTorch distinguishes tasks by outcome names. For several
        outcomes, a mapping from outcomes to such mappings, which
        :func:`~botorch_transfer.transfer_models` takes.

    Raises:
        InputDataError: If ``frame`` is not a table, if a column is missing, if two columns have the
            same name, or if one column has two meanings. If a run has no task, if none of the runs
            has a finite outcome, if an outcome has no logarithm, or if a standard error is
            negative. If a task lacks a parameter that is not in ``missing``, if a parameter's value
            is empty or of a wrong type, or if all runs are left out. The message names the task
            and the parameter.
        TypeError: If an argument has a wrong type.
        ValueError: If ``goal`` or ``failed`` has a value that is not listed above. Also if
            ``missing`` has a name that is not a parameter of the space, or a value that its
            parameter cannot have.

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
    check_arguments(locals())
    names = outcome if isinstance(outcome, list) else [outcome]
    signs = [1.0 if each == "max" else -1.0 for each in checked_goals(names, goal, "max")]
    if failed not in ("drop", "worst"):
        raise ValueError(f"failed= is {failed!r}: use 'drop' or 'worst'.")
    space = SearchSpace.of(space)
    targets = [Outcome(n, sign, None, noise, log) for n, sign in zip(names, signs, strict=True)]
    frame = renamed(frame, rename or {})
    named = [*(("outcome", name) for name in names), ("task", task)]
    named += [] if noise is None else [("noise", noise)]
    missing = with_known(missing, space.columns)
    frame = check_columns(frame, space, named, missing or {}, changed)
    used = {*space.columns, task, *(column for target in targets for column in target.columns)}
    (frame,) = measured([frame], targets, None if "status" in used else "status", task)
    options: dict[str, Any] = {"changed": changed, "keep": failed == "worst", "robust": robust}
    found = read_history(frame, space, targets, task, missing, **options).sources
    if unknown := [name for name in names if found[name] is None]:
        text = f"No run has a finite outcome in the column {unknown[0]!r}"
        raise InputDataError(f"{text}: there are no source data in this table.")
    return found if isinstance(outcome, list) else cast(dict[str, Any], found[outcome])


class OldRuns(NamedTuple):
    """Old runs in the form of model inputs and outcomes.

    Args:
        sources: Mapping from each outcome to its source data, or to ``None`` if no run has a finite
            value of this outcome. The source data of an outcome are a mapping from task names to
            data sets. Outcomes in data sets are maximized.
        failed: An ``f x d`` tensor of inputs of failed runs. The tensor leaves out failed runs of
            tasks without a successful run, and failed runs that lack a parameter's value.
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
    """Converts a table of old runs to source data for each outcome, and finds failed runs.

    Args:
        frame: A table that :func:`~.measurements.measured` returned.
        space: The search space.
        outcomes: The outcomes.
        task: The column with the name of the task.
        missing: See :func:`from_dataframe`.
        status: The column with the status of a run. If the table lacks the column, runs without any
            outcome count as failed. If ``status`` is ``None``, no failed runs are returned.
        changed: See :func:`from_dataframe`.
        keep: Whether failed runs without an outcome get the worst outcome of their task.
        encode: Another encoding, for models whose inputs are not in the unit cube: a function that
            maps a table of ``n`` runs to an ``n x d`` tensor of inputs.
        robust: See :func:`from_dataframe`.

    Returns:
        The source data of each outcome, and the inputs of the failed runs.

    Raises:
        InputDataError: For the reasons listed in :func:`from_dataframe`.
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
    notes, tasks = _Notes(list), rows_of_tasks(frame[task])
    _warn_of_rows(frame, tasks, Y, [name for name in space.columns if name in frame])
    for name, rows in tasks.items():
        known = is_finite[rows].any(axis=1)
        if not known.any():
            continue
        runs = _fill(name, frame.iloc[rows], space, missing or {}, changed)
        if status is not None and (known & ~failed[rows]).any() and failed[rows].any():
            failed_inputs += _places(runs[failed[rows]], space)
        counts = known | (keep & ~ended[rows])
        X, has_place = _encode_task(name, runs[counts], space, changed, notes)
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
            notes["limited"] += [name] * int((every < (lowest if robust else far)).sum())
            values = np.where(finite, Y[placed, i], float(every.min()))
            squares = np.where(finite, variance[placed, i], variance[placed, i][finite].max())
            at = torch.from_numpy(finite | (keep & ~ended[placed]))
            Yvar = None if np.isnan(squares).any() else torch.from_numpy(squares)[at, None]
            known_Y, Yvar = limit_outcomes(torch.from_numpy(values)[at, None], lowest, Yvar)
            called: dict[str, Any] = {"feature_names": names, "outcome_names": [name]}
            sources[outcome.name][name] = SupervisedDataset(X[at], known_Y, Yvar=Yvar, **called)
    for i, outcome in enumerate(outcomes):
        without = [name for name, rows in tasks.items() if not is_finite[rows, i].any()]
        _log_missing(is_finite[:, i], outcome.name, keep, without)
        data = sources[outcome.name]
        _recommend_logarithms(outcome, data)
        constant = [name for name, task in data.items() if len(task.Y.unique()) < 2]
        if data and len(constant) == len(data):
            text = "Each old task has only one value of %r%s"
            named = f": does the column {task!r} name runs, not tasks?"
            is_run = len(tasks) == len(frame) > 1
            logger.warning(text, outcome.name, named if is_run else ", so old runs do not help")
        elif many := [name for name in constant if len(data[name].Y) > ENOUGH_SAME]:
            text = "All runs of task %r have one value of %r: empty cells without a true result"
            logger.warning(text, many[0], outcome.name)
        groups = {f"task {k!r}": outcome.original(task.Y[:, 0]).numpy() for k, task in data.items()}
        for problem in (problems := list(mixed_outcomes(groups, outcome.name))):
            logger.warning(problem)
        if not problems:
            _warn_of_reversal(outcome, data)
            _warn_of_scales(outcome, data)
    _log_notes(notes, outcomes[0].name, robust, changed or encode is not None)
    if notes["displaced"] and not any(sources.values()):
        raise InputDataError(
            "No run is left, because each run has a value that the search space lacks: add the "
            "values to the search space, or leave out the table."
            + "".join(f" Maybe another unit: {suspicion}." for suspicion in suspicions)
        )
    found = {name: tasks or None for name, tasks in sources.items()}
    return OldRuns(found, torch.cat(failed_inputs))


#: Lists for the log. ``displaced``: task and row of each run that cannot be encoded. ``lost``:
#: column, cell and remark for each value that cannot be encoded. ``placed``: task and row of each
#: encoded run. ``outside``: task and row of each run outside of the unit cube. ``far``: task and
#: row of each run that is more than ``FAR_OUTSIDE`` outside, and of all runs of a task if the task
#: has three or more runs and none of them is inside. ``limited``: task of each very bad outcome.
_Notes = defaultdict[str, list[Any]]

#: A warning names old runs whose distance from the range of a parameter is above this number times
#: the width of the range.
FAR_OUTSIDE = 1.0


def _log_notes(notes: _Notes, outcome: str, robust: bool | None, expected: bool) -> None:
    """Logs very bad outcomes, runs that are left out, and runs outside of the search space."""
    if (limited := notes["limited"]) and robust is not None:
        told = ", and are clipped" if robust else ": consider robust=True"
        text = f"%d values of %r are far worse than their task's median{told} (task %s)"
        level = logging.INFO if robust else logging.WARNING
        logger.log(level, text, len(limited), outcome, _counted(limited))
    if displaced := notes["displaced"]:
        cells = DataFrame(notes["lost"]).groupby(0, sort=False)
        lost = "; ".join(f"{name!r} is {_counted(c[1])}{c[2].iloc[0]}" for name, c in cells)
        text = "%d runs are left out, because each has a value that the search space lacks: %s (%s)"
        logger.warning(text, len(displaced), lost, _some(displaced))
    if outside := notes["outside"]:
        text = "%d runs lie outside of the search space, and their values are kept: check the "
        text += "ranges (%s)" if expected else "ranges, or give changed=True (%s)"
        is_minor = expected and not notes["far"] and len(outside) < len(notes["placed"])
        level = logging.INFO if is_minor else logging.WARNING
        logger.log(level, text, len(outside), _some(notes["far"] or outside))


def _encode_task(
    name: str, runs: DataFrame, space: SearchSpace, changed: bool, notes: _Notes
) -> tuple[Tensor, NDArray[np.bool_]]:
    """Encodes the runs of one task; leaves out each run with a value that cannot be encoded.

    Returns the inputs of the encoded runs, and a mask of the encoded runs among ``runs``. Adds the
    runs that are left out, and runs outside of the unit cube, to ``notes``.
    """
    needed = [p.name for p in space.parameters if changed and p.is_numeric and p.active_if is None]
    filled = runs[needed].notna().all(axis=1).to_numpy()
    X = torch.full((len(runs), space.dim), math.nan, dtype=torch.double)
    with errors_in(f"Task {name!r}"):
        X[torch.tensor(filled)] = space.place(runs[filled])
    has_place = X.isfinite().all(dim=-1).numpy()
    if not has_place.all():
        empty = [(column, None, "") for column in needed for cell in runs[column] if isna(cell)]
        notes["lost"] += empty + space.without_place(runs[filled & ~has_place])
        notes["displaced"] += [(name, row) for row in runs.index[~has_place]]
    beyond = (-X[has_place]).maximum(X[has_place] - 1).amax(dim=-1).numpy()
    is_never_inside = len(beyond) >= ENOUGH_SAME and beyond.min() > SAME_PLACE
    far = 0.0 if is_never_inside else FAR_OUTSIDE
    for note, distance in (("placed", -math.inf), ("outside", 0.0), ("far", far)):
        notes[note] += [(name, row) for row in runs.index[has_place][beyond > distance]]
    return X[has_place], has_place


def without_repeats(
    history: DataFrame,
    runs: DataFrame | None,
    space: SearchSpace,
    outcomes: Sequence[Outcome],
    task: str,
) -> DataFrame:
    """Leaves out each old task that repeats another old task or repeats runs of the current study.

    If one file has the runs of all studies, the old runs contain runs of the current study.

    Args:
        history: Old runs, with numeric outcomes.
        runs: The runs of the study, with numeric outcomes.
        space: The search space.
        outcomes: The outcomes.
        task: The column of ``history`` that names the task.

    Returns:
        The old runs of the remaining tasks. A task repeats another task if two conditions hold: at
        least 90 % of its runs are also runs of the other task, and these shared runs have at least
        five different outcomes. For a task with only three or four runs, the second condition is
        that no two outcomes of the task are equal. Of two tasks with the same runs, one remains. A
        task repeats runs of the current study if the task and the study share at least three
        distinct runs, and if one of two conditions holds: (1) the outcomes of the distinct shared
        runs are all different; (2) the shared runs are at least 90 % of the task's runs, and have
        at least two different outcomes. In the second case, numbers may be rounded in one of the
        two tables.
    """
    history = _without_copies(history, space, outcomes, task)
    if runs is None:
        return history
    names = [o.name for o in outcomes if o.name in history and o.name in runs]
    columns = [name for name in space.columns if name in history and name in runs] + names
    known = runs[runs[names].notna().any(axis=1)] if names else runs[:0]
    if len(known) < ENOUGH_SAME:
        return history
    kept, has_outcome = np.ones(len(history), dtype=np.bool_), history[names].notna().any(axis=1)
    is_own, is_exact = _are_among(history[columns], known[columns])
    for name, rows in rows_of_tasks(history[task]).items():
        if not is_own[rows].any():
            continue
        count = has_outcome.iloc[rows].sum()
        # Runs that were rounded in one table may agree by chance, so all of them must agree.
        is_rounded = (is_own[rows] & ~is_exact[rows]).any() and is_own[rows].sum() >= MOST * count
        same = history.iloc[rows[(is_own if is_rounded else is_exact)[rows]]]
        different = same.drop_duplicates(columns)
        if len(different) < ENOUGH_SAME:
            continue
        levels = max(different[column].nunique() for column in names)
        # On a grid, runs may agree by chance if the outcome has few distinct values.
        is_all = levels > 1 and len(same) >= MOST * count
        if is_all or levels == len(different):
            text = "Task %r of the history has %d of this study's own runs: the task is left out"
            logger.warning(text, name, len(same))
            kept[rows] = False
    return history[kept]


def _without_copies(
    history: DataFrame, space: SearchSpace, outcomes: Sequence[Outcome], task: str
) -> DataFrame:
    """Leaves out each old task that repeats another old task; see ``without_repeats``."""
    names = [outcome.name for outcome in outcomes if outcome.name in history]
    columns = [*(name for name in space.columns if name in history), *names]
    tasks = history[task].map(str).to_numpy()
    known = history[names].notna().any(axis=1).to_numpy()
    runs = DataFrame({"task": tasks, "run": _hashes(history[columns])})[known]
    runs["size"] = runs.groupby("task")["run"].transform("size")
    runs = runs.sort_values(["size", "task"], ascending=[False, True])
    runs["first"] = runs.groupby("run")["task"].transform("first")
    kept = np.ones(len(history), dtype=np.bool_)
    repeated: Any = runs[runs["task"] != runs["first"]].groupby(["task", "first", "size"])
    for (name, other, size), same in repeated:
        if len(same) >= MOST * size:
            levels = history.iloc[same.index][names].nunique().max()
            if levels >= max(ENOUGH_SAME, min(ENOUGH_LEVELS, size)):
                text = "Task %r of the history is left out, because task %r has the same runs"
                logger.warning(text, name, other)
                kept &= tasks != name
    return history[kept]


def _hashes(table: DataFrame) -> NDArray[Any]:
    """Computes a hash of each row of a table: a number that is the same for equal rows."""
    cells = {i: c if is_numeric_dtype(c) else c.map(str) for i, (_, c) in enumerate(table.items())}
    return hash_pandas_object(DataFrame(cells), index=False).to_numpy()


def _are_among(table: DataFrame, others: DataFrame) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Finds the rows of a table that are also rows of another table; 3, 3.0 and "3" are equal.

    Returns two masks. The first mask allows for rounding: two numbers agree if they are equal after
    rounding to the decimals of the number with fewer decimals.
    """
    values, texts, tolerances = _cells(table)
    found, exact = np.zeros((2, len(table)), dtype=np.bool_)
    for cells, text, allowed in zip(*_cells(others), strict=True):
        rows = np.flatnonzero(texts == text)
        for j in reversed(range(len(cells))):  # the last column, an outcome, excludes most rows
            gap, tolerance = np.abs(values[rows, j] - cells[j]), tolerances[rows, j]
            tolerance = np.minimum(np.maximum(tolerance, allowed[j]), 0.05 * abs(cells[j]))
            rows = rows[(gap <= tolerance) | (np.isnan(gap) & np.isnan(cells[j]))]
        found[rows] = True
        near = np.isclose(values[rows], cells, 1e-11, 0.0, equal_nan=True)
        exact[rows] |= near.all(axis=1)
    return found, exact


def _cells(table: DataFrame) -> tuple[Array, NDArray[Any], Array]:
    """Returns the numbers of a table, a hash of each row's texts, and the numbers' tolerances.

    Cells without a number are NaN. The tolerance of a number is half a unit of its last decimal;
    numbers with more than ``MAX_DECIMALS`` decimals have no tolerance for rounding.
    """
    cells = table.astype({name: str for name in table if table[name].dtype.kind not in "iuf"})
    parsed: Any = cells.apply(to_numeric, errors="coerce")
    texts = np.zeros(len(table), dtype=np.uint64)
    for i, name in enumerate(table):
        is_text = (parsed[name].isna() & table[name].notna()).to_numpy()
        words = table[name][is_text].map(str)
        texts[is_text] += (2 * i + 1) * hash_pandas_object(words, index=False).to_numpy()
    values = parsed.to_numpy(np.float64, na_value=np.nan)
    tolerances = 1e-11 * np.abs(values)
    for k in reversed(range(MAX_DECIMALS + 1)):
        is_rounded = np.isclose(values.round(k), values, 1e-11, 0.0)
        tolerances[is_rounded] = 0.5001 * 10.0**-k
    return values, texts, tolerances


def limit_task(
    task: SupervisedDataset, limit: float | None = None, by_rank: bool = False
) -> SupervisedDataset:
    """Clips very bad outcomes of a task at a lower limit, see ``robust_limit``.

    Args:
        task: The task; its outcomes are maximized.
        limit: The lower limit of a constrained outcome: smaller values are infeasible. ``None`` for
            an objective.
        by_rank: Whether to raise outcomes below the median: each becomes the normal quantile that
            belongs to its rank, if this quantile is larger than the outcome
            (:func:`~botorch_transfer.outcome_transforms.raise_worse_half`).

    Returns:
        A task with clipped outcomes; the object ``task`` itself if no outcome changes.

    Example:
        >>> X, Y = torch.rand(4, 1), torch.tensor([[4.0], [3.0], [2.0], [-1e6]])
        >>> task = SupervisedDataset(X, Y, feature_names=["x"], outcome_names=["y"])
        >>> limit_task(task).Y.flatten().tolist()
        [4.0, 3.0, 2.0, 0.0]
    """
    lowest = robust_limit(task.Y, limit=limit)
    Y, Yvar = limit_outcomes(task.Y, lowest, task.Yvar)
    Y = raise_worse_half(Y) if by_rank else Y
    return task if bool((Y == task.Y).all()) else with_outcomes(task, Y, Yvar)


def modelled(frame: DataFrame, outcomes: Sequence[Outcome]) -> tuple[Array, Array]:
    """Converts outcomes to the values that models maximize, and standard errors to variances.

    Args:
        frame: A table that :func:`~.measurements.measured` returned. If it lacks an outcome, the
            outcome is missing in all rows.
        outcomes: The outcomes.

    Returns:
        Two ``n x m`` arrays. The first array has the outcomes or their logarithms, multiplied by
        the outcomes' signs; missing outcomes are NaN or infinite. The second array has the noise
        variances; unknown noise variances are NaN.

    Raises:
        InputDataError: If an outcome has no logarithm.
    """
    Y, variance = np.empty((2, len(frame), len(outcomes)))
    for i, outcome in enumerate(outcomes):
        noise = outcome.noise or error_column(outcome.name)
        values, errors = numbers(frame, outcome.name), numbers(frame, noise)
        if outcome.log:
            logs = logarithms(values, frame, outcome.name)
            errors, values = errors / np.where(np.isfinite(values), values, 1.0), logs
        Y[:, i] = outcome.sign * values
        variance[:, i] = np.where(np.isfinite(values), errors**2, np.nan)
    return Y, variance


def has_failed(frame: DataFrame, Y: Array) -> NDArray[np.bool_]:
    """Finds the failed runs of a table.

    Args:
        frame: A table that :func:`~.measurements.measured` returned.
        Y: An ``n x m`` array of the table's outcomes.

    Returns:
        An ``n`` boolean array. A run has failed if the column :data:`~.measurements.FATE` has
        ``"failed"``, or if an outcome is infinite.

    Example:
        >>> from pandas import DataFrame
        >>> (frame,) = measured([DataFrame({"status": ["ok", "Failed"]})], [])
        >>> has_failed(frame, np.array([[0.5], [np.nan]])).tolist()
        [False, True]
    """
    return np.asarray(np.isinf(Y).any(axis=1)) | (frame[FATE] == "failed").to_numpy()


def _places(runs: DataFrame, space: SearchSpace) -> list[Tensor]:
    """Encodes failed runs; leaves out each run with a value that is missing or cannot be encoded.

    Returns a list of tensors of encoded inputs. The list may be empty.
    """
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
    """Fills the columns of parameters that a task does not record; returns the filled table.

    Raises an error if such a parameter is unconditional and not in ``missing``, unless ``changed``
    is true. ``SearchSpace.place`` checks conditional parameters later.
    """
    runs = runs.copy(deep=False)
    for parameter in space.parameters:
        column = parameter.name
        if column in runs and (parameter.may_be_empty or not runs[column].isna().all()):
            continue
        if missing.get(column) is not None:
            runs[column] = missing[column]
        elif column in missing or changed:
            runs[column] = _unknown_values(parameter, len(runs), seed=f"{name}/{column}")
        elif parameter.active_if is None:
            text = f"Task {name!r} has no values of parameter {column!r}: give the parameter's "
            raise InputDataError(f"{text}value by missing={{{column!r}: ...}}, or drop the task.")
    return runs


def _unknown_values(parameter: Parameter, n: int, seed: str) -> NDArray[Any]:
    """Draws random values of a parameter for ``n`` runs whose value of the parameter is unknown.

    The values are spread over the range, in random order. Models then see no effect of the
    parameter on the outcomes of these runs.
    """
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    unit = parameter.sample(n, rng)
    if unit.shape[1] == 1:  # draw one value in each of n equal parts of the range
        unit = ((rng.permutation(n) + rng.random(n)) / n)[:, None]
    return parameter.decode(unit)[parameter.name].to_numpy()


def _counted(values: Iterable[Any]) -> str:
    """Lists the most frequent values with their counts, as in "'a' (4), 'b' (1) and 3 more"."""
    counts = Counter("empty" if isna(value) else repr(plain(value)) for value in values)
    common = [f"{value} ({number:,})" for value, number in counts.most_common(MAX_COUNTED)]
    more = len(counts) - len(common)
    return ", ".join(common) + (f" and {more:,} more" if more else "")


def _some(runs: Sequence[tuple[str, Any]]) -> str:
    """Lists tasks with their numbers of runs, as in "task 'a' (2), 'b' (1), from row 0 on".

    Each item of ``runs`` is one run: its task and its row. The result has only the row of the first
    item.
    """
    return f"task {_counted(name for name, _ in runs)}, from row {runs[0][1]} on"


def _log_missing(is_finite: NDArray[np.bool_], name: str, keep: bool, without: list[str]) -> None:
    """Logs the number of runs without an outcome; warns of tasks without any outcome."""
    if count := int((~is_finite).sum()):
        treatment = "failed runs get the worst outcome of their task" if keep else "left out"
        text = f"{count:,} of {len(is_finite):,} runs have no finite outcome {name!r}: {treatment}"
        if count == len(is_finite):
            text = f"No old run has a value of {name!r}: {name!r} is learned from new runs only"
        elif without:
            text += f"; tasks without a finite outcome: {', '.join(map(repr, without))}"
        logger.log(logging.WARNING if without else logging.INFO, text)


def _warn_of_rows(
    frame: DataFrame, tasks: Mapping[str, NDArray[np.intp]], Y: Array, parameters: Sequence[str]
) -> None:
    """Warns of repeated rows or outcomes, of ranks, of similar task names, and of summary rows.

    If cells were filled down, or if tables were merged without a key, runs with different
    parameters have the same outcomes.
    """
    settings = Series(_hashes(frame[[*parameters]]))
    is_copy, twice = Series(_hashes(frame)).duplicated(keep=False).to_numpy(), list[str]()
    for name, rows in tasks.items():
        copies = rows[is_copy[rows]]
        is_most = 2 * len(copies) > len(rows)
        if is_most and len(np.unique(np.nan_to_num(Y[copies]), axis=0)) >= ENOUGH_SAME:
            twice += [name] * len(copies)
        y = Series(Y[rows, 0], rows).dropna()
        is_rank = sorted(y.abs()) == [*range(1, len(y) + 1)] and (Y[:, 0] % 1 > 0).any()
        if is_rank and len(y) >= ENOUGH_LEVELS:
            text = "Task %r has the outcomes 1 to %d, once each: are they ranks?"
            logger.warning(text, name, len(y))
        levels, different = y.nunique(), settings[y.index].nunique()
        are_filled = (y != y.shift()).sum() == levels <= min(len(y) / 3, different - 1)
        are_filled &= not (y.is_monotonic_increasing or y.is_monotonic_decreasing)
        are_crossed = levels * different == len(y) and min(levels, different) > 2
        if (y % 1).any() and levels > 1 and (are_filled or are_crossed):
            text = "Task %r has the same outcomes for different parameters: check fills and merges"
            logger.warning(text, name)
    without_summaries(tasks, frame.index)
    if twice:
        text = "%d rows occur more than once (task %s): give each run once"
        logger.warning(text, len(twice), _counted(twice))
    warn_of_spellings("Task names", tasks)


def _warn_of_scales(outcome: Outcome, tasks: Mapping[str, SupervisedDataset]) -> None:
    """Warns of a task whose outcomes seem to have another unit than the other tasks' outcomes."""
    is_checked = MIN_SEARCHED <= len(tasks) <= MAX_SEARCHED and not outcome.log
    for name, task in tasks.items() if is_checked else ():
        others = [each.Y[:, 0] for each in tasks.values() if each is not task]
        index = torch.cat([torch.full((len(Y),), j) for j, Y in enumerate(others)])
        whose = f"{outcome.name!r} of task {name!r}"
        problem = another_unit(whose, task.Y, torch.cat(others), index, outcome.sign)
        if problem and "it fits" in problem:
            logger.warning(problem)


def _warn_of_reversal(outcome: Outcome, tasks: Mapping[str, SupervisedDataset]) -> None:
    """Warns of a task whose good settings are bad in all other tasks, maybe due to a wrong sign.

    Computes the correlation between the ranks of a task's outcomes and the mean ranks of the
    nearest runs of the other tasks. Warns if this correlation is clearly negative, and if the other
    tasks agree with one another.
    """
    tasks = {name: data for name, data in tasks.items() if len(data.Y) >= MIN_COMPARED}
    if not MIN_SEARCHED <= len(tasks) <= MAX_SEARCHED:
        return
    few = [(each, evenly_spaced(len(each.Y), MAX_COMPARED)) for each in tasks.values()]
    X, Y = [each.X[rows] for each, rows in few], [ranks(each.Y[rows, 0]) for each, rows in few]
    pairs = list(zip(X, Y, strict=True))
    nearest = [[y[torch.cdist(x, z).argmin(dim=-1)] / len(y) for z, y in pairs] for x in X]

    def agreement(i: int, others: Iterable[int]) -> float:
        mean = torch.stack([nearest[i][j] for j in others if j != i]).mean(dim=0)
        return float(torch.corrcoef(torch.stack([ranks(mean), Y[i]]))[0, 1].nan_to_num())

    found = [agreement(i, range(len(X))) for i in range(len(X))]
    i = int(np.argmin(found))
    others = [j for j in range(len(X)) if j != i]
    agreed = float(np.median([agreement(j, others) for j in others]))
    own, rest = (torch.cat([few[j][0].Y for j in rows]) for rows in ([i], others))
    is_apart = bool(own.max() < rest.min() or own.min() > rest.max())  # maybe another scale
    if found[i] < (APART if is_apart else REVERSED - 1.5 / len(Y[i])) and agreed > AGREED:
        text = "Good settings of task %r are bad in the other old tasks (rank correlation %.2f): "
        text += "check the sign of the task's %r, or leave the task out"
        logger.warning(text, list(tasks)[i], found[i], outcome.name)


def _recommend_logarithms(outcome: Outcome, tasks: Mapping[str, SupervisedDataset]) -> None:
    """Recommends logarithms if the best losses are far smaller than the median losses of tasks."""
    losses = [-data.Y[:, 0].numpy() for data in tasks.values()]
    is_loss = outcome.goal == "min" and not outcome.log and min(map(np.min, losses), default=0) > 0
    if is_loss and np.median([np.median(Y) / Y.min() for Y in losses]) > MANY_TIMES:
        text = "In most old tasks, the best %r is below a tenth of the median: consider log=True "
        logger.info(text + "(--log)", outcome.name)


# ------------------------------------------------------------------------------- runs of a study


class Runs(NamedTuple):
    """The runs of the current study in the form of model inputs and outcomes.

    Args:
        X: An ``n x d`` tensor of inputs of the runs with at least one known outcome.
        Y: An ``n x m`` tensor of outcomes, which are maximized; NaN for an unknown outcome.
        Yvar: An ``n x m`` tensor of noise variances; NaN for an unknown noise variance.
        added: An ``n x m`` tensor of variances to add to the noise variances. For a run that was
            stopped early, the final outcome is predicted, and ``added`` is the variance of this
            prediction. For all other runs, ``added`` is zero.
        succeeded: An ``n`` boolean tensor: whether each run has succeeded, not failed.
        waiting: A ``p x d`` tensor of inputs of pending runs.
        failed: An ``f x d`` tensor of inputs of failed runs, including failed runs that have an
            outcome.
        ended: An ``e x d`` tensor of inputs of runs that ended without an outcome.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    added: Tensor
    succeeded: Tensor
    waiting: Tensor
    failed: Tensor
    ended: Tensor

    @classmethod
    def of(cls, X: Tensor, Y: Tensor) -> Self:
        """Builds ``Runs`` from ``n x d`` inputs and ``n x m`` outcomes; all runs are successful."""
        unknown, none = torch.full_like(Y, torch.nan), X[:0]
        succeeded = torch.ones(len(X), dtype=torch.bool)
        return cls(X, Y, unknown, torch.zeros_like(Y), succeeded, none, none, none)

    @property
    def awaited(self) -> Tensor:
        """Inputs of all runs that have an outcome or are pending."""
        return torch.cat([self.X, self.waiting])

    @property
    def tried(self) -> Tensor:
        """Inputs of all runs."""
        return torch.cat([self.awaited, self.failed, self.ended])

    @property
    def good(self) -> Tensor:
        """Inputs of the runs that have an outcome and have not failed."""
        return self.X[self.succeeded]

    def known(self, index: int) -> Runs:
        """Returns the runs in which the outcome at ``index`` is known; drops all other outcomes."""
        rows, one = self.Y[:, index].isfinite(), slice(index, index + 1)
        known = {name: getattr(self, name)[rows, one] for name in ("Y", "Yvar", "added")}
        return self._replace(X=self.X[rows], succeeded=self.succeeded[rows], **known)


def read_runs(
    space: SearchSpace, runs: DataFrame | None, outcomes: Sequence[Outcome], status: str
) -> Runs:
    """Encodes the runs of the current study; separates pending, failed and ended runs.

    Args:
        space: The search space.
        runs: A table that :func:`~.measurements.measured` returned; ``None`` for no runs.
        outcomes: The outcomes.
        status: The column with the status of a run.

    Returns:
        The encoded runs.

    Raises:
        InputDataError: If a parameter's column is missing, or a value is not in the search space.
    """
    if runs is None or runs.empty:
        runs = DataFrame(columns=[*space.columns, FATE])
    columns = [column for outcome in outcomes for column in outcome.columns]
    spare = [n for n in runs.columns if n not in {*space.columns, status, FATE, *columns}]
    for name in (*space.columns, *(outcome.name for outcome in outcomes)):
        if name not in runs.columns and (likely := likely_column(name, spare)):
            text = f"The runs have no column {name!r}, but they have a column {likely!r}: rename"
            raise InputDataError(f"{text} {likely!r} if both mean the same, or drop {likely!r}.")
    for outcome in outcomes:
        if outcome.name not in runs.columns and len(runs):
            text = "The runs have no column %r, so no run has this outcome. The columns are %s"
            logger.warning(text, outcome.name, ", ".join(map(repr, runs.columns.drop(FATE))))
    with errors_in("In the runs"):
        X = space.place(runs, within=SLIGHTLY)
        Y, variance = modelled(runs, outcomes)
    beyond = (-X).maximum(X - 1).amax(dim=-1)
    if outside := runs.index[(beyond > SAME_PLACE).numpy()].tolist():
        text = "%d of the runs lie slightly outside of the search space: their values are kept "
        logger.info(text + "(from row %s on)", len(outside), outside[0])
    failed, ended = has_failed(runs, Y), (runs[FATE] == "ended").to_numpy(dtype=np.bool_)
    Y = np.where(np.isfinite(Y), Y, np.nan)
    done = np.isfinite(Y).any(axis=1)
    added = np.stack([numbers(runs, variance_column(o.name)) for o in outcomes], axis=1)
    values = (torch.from_numpy(each[done]) for each in (Y, variance, np.nan_to_num(added), ~failed))
    left = ~done & ~failed
    inputs = (X[torch.from_numpy(rows)] for rows in (done, left & ~ended, failed, left & ended))
    return Runs(next(inputs), *values, *inputs)
