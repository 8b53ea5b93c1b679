"""From a table of old runs to source data: failed runs, changed search spaces, standard errors."""

from __future__ import annotations

import difflib
import logging
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import SupervisedDataset
from numpy.typing import NDArray
from pandas import DataFrame, Series, isna

from botorch_transfer.data.measurements import (
    FATE,
    error_column,
    measured,
    numbers,
    refuse_cell,
)
from botorch_transfer.data.outcome import Outcome
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

MAX_COUNTED = 4
"""The most values to name in a log line."""

MANY_TIMES = 10.0
"""How many times the best loss a median one has to be before a log line advises logarithms."""


def from_dataframe(
    frame: DataFrame,
    space: SearchSpace,
    outcome: str,
    task: str,
    goal: Literal["max", "min"] = "max",
    failed: Literal["drop", "worst"] = "drop",
    noise: str | None = None,
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    changed: bool = False,
    log: bool = False,
    encode: Callable[[DataFrame], torch.Tensor] | None = None,
    robust: bool | None = False,
    limit: float | None = None,
) -> dict[str, SupervisedDataset]:
    """Makes source data of a table with one row a run.

    Cells such as ``>95``, ``29*``, ``18 ± 2`` and ``n.d.`` are read, and codes such as -999 count
    as missing; see the page on source data. Runs without a finite outcome are dropped, or the
    failed ones get the worst finite outcome of their task. A task without any finite outcome is
    left out. One log line per call counts the runs and names the tasks.

    If the best losses are many times smaller than ordinary ones, differences between them are lost
    on the scale of the losses; consider ``log``. A line in the log says so if the best loss is less
    than a tenth of the median one in half of the tasks or more.

    The search space may have changed since, see ``missing``, ``rename`` and ``changed``:

    - A parameter that a task does not record had one value, which ``missing`` gives. The task then
      says nothing of other values. Or its value is unknown: each run then gets another one, spread
      over the range, so that outcomes do not depend on the parameter as far as this task goes.
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
        outcome: Column with the outcome.
        task: Column with the name of the task; names are compared as text.
        goal: Whether large (``"max"``) or small (``"min"``) outcomes are good. Models maximize, so
            ``"min"`` changes the sign.
        failed: What to do with failed runs: ``"drop"`` them, or give them the task's ``"worst"``
            finite outcome, if a failure tells something about the parameters.
        noise: Column with the standard error of the outcome (not the variance), in the outcome's
            unit; its square becomes ``Yvar``. An empty or zero standard error is the pooled one of
            the task's other runs. A task with an empty column has its noise inferred. A failed run
            that is kept has the largest standard error of its task.
        missing: Values of parameters that a task does not record (empty or absent column); ``None``
            if the value is not known.
        rename: New names of columns by their old ones.
        changed: Whether the search space has changed since the runs. If not, an unrecorded
            parameter that ``missing`` does not name is an error, and a warning in the log says how
            many runs lie outside of the space. If it has, such a parameter counts as unknown,
            unless the table has a column of a similar name.
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
        ``encode`` is given; the outcome is named as the task (BoTorch tells tasks apart by that).

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
    check_table(frame, ())
    frame = renamed(frame, rename or {})
    others = {"outcome": outcome, "task": task} | ({} if noise is None else {"noise": noise})
    _check_columns(frame, space, others)
    for name in missing or {}:
        if name not in space.columns:
            raise ValueError(
                f"missing names {name!r}, which is no parameter of the search space: use one of "
                f"{', '.join(space.columns)}."
            )
    _refuse_likely_renames(frame, space, missing or {}, others.values(), changed)
    sign = 1.0 if goal == "max" else -1.0
    frame = with_numbers(frame, space.number_columns)
    if log and limit is not None and limit <= 0:
        raise ValueError(f"limit is {limit}, which has no logarithm: leave log out.")
    worst = limit if limit is None else sign * (math.log(limit) if log else limit)
    (frame,) = measured([frame], [Outcome(outcome, sign, worst, noise, log)], None, task)
    if noise is None and error_column(outcome) in frame:
        noise = error_column(outcome)
    if log:
        frame = in_logarithms(frame, outcome, noise)
    suspicions = wrong_units(frame, space, task)
    for suspicion in suspicions:
        logger.warning("Maybe another unit: %s", suspicion)
    Y = sign * numbers(frame, outcome)
    is_finite = np.isfinite(Y)
    may_count = is_finite | (frame[FATE] != "ended").to_numpy()
    datasets: dict[str, SupervisedDataset] = {}
    without_outcome, limited = list[str](), list[str]()
    displaced, lost, outside = (list[tuple[str, Any]]() for _ in range(3))
    always = [p for p in space.parameters if p.is_numeric and p.active_if is None and changed]
    needed = [column for parameter in always for column in parameter.columns]
    for name, rows in rows_of_tasks(frame[task]).items():
        finite = rows[is_finite[rows]]
        if len(finite) == 0:
            without_outcome.append(name)
            continue
        kept = rows[may_count[rows]] if failed == "worst" else finite
        runs = _fill(name, frame.iloc[kept], space, missing or {}, changed)
        filled = runs[needed].notna().all(axis=1).to_numpy()
        X = torch.full((len(runs), space.dim), math.nan, dtype=torch.double)
        with errors_in(f"Task {name!r}"):
            X[torch.tensor(filled)] = space.place(runs[filled])
        has_place = X.isfinite().all(dim=-1).numpy()
        if not has_place.all():
            lost += [(column, None) for column in needed for cell in runs[column] if isna(cell)]
            lost += space.without_place(runs[filled & ~has_place])
            displaced += [(name, row) for row in runs.index[~has_place]]
        kept, runs, X = kept[has_place], runs[has_place], X[has_place]
        if not is_finite[kept].any():
            continue
        beyond = ((X < 0) | (X > 1)).any(dim=-1).numpy()
        outside += [(name, row) for row in runs.index[beyond]]
        y = np.where(is_finite[kept], Y[kept], Y[finite].min())
        noises = variances(runs, noise, is_finite[kept])
        features = space.feature_names
        if encode is not None:
            X = encode(runs)
            features = [f"x{column}" for column in range(X.shape[-1])]
        known, values = torch.from_numpy(Y[finite]), torch.from_numpy(y)[:, None]
        far = (1 + EXTREME) * best_gap(known) or math.inf
        lowest = robust_limit(known, limit=worst) if robust else -math.inf
        limited += [name] * int((known < (lowest if robust else known.max() - far)).sum())
        Yvar = None if np.isnan(noises).any() else torch.from_numpy(noises)[:, None]
        values, Yvar = limit_outcomes(values, lowest, Yvar)
        names = {"feature_names": features, "outcome_names": [name]}
        datasets[name] = SupervisedDataset(X, values, Yvar=Yvar, **names)  # type: ignore[arg-type]
    _log(Y, outcome, failed, without_outcome)
    if limited and robust is not None:
        text = "%d outcomes %r are far worse than a task's median%s (task %s)"
        told = ", and count as just bad" if robust else ": consider robust=True"
        level = logging.INFO if robust else logging.WARNING
        logger.log(level, text, len(limited), outcome, told, _counted(limited))
    losses = [-data.Y[:, 0].numpy() for data in datasets.values()]
    if goal == "min" and not log and _differ_by_factors(losses):
        logger.info(
            "The best %r of old tasks is less than a tenth of the median one: consider log=True "
            "(--log)",
            outcome,
        )
    if displaced:
        cells = DataFrame(lost).groupby(0, sort=False)[1]
        logger.warning(
            "%d runs have a value that the search space has no place for, as %s: left out (%s)",
            len(displaced),
            "; ".join(f"{column!r} is {_counted(values)}" for column, values in cells),
            _some(displaced),
        )
    if outside:
        expected = changed or encode is not None
        message = (
            "%d runs lie outside of the search space, and are kept where they are: check its ranges"
            f"{'' if expected else ', or say changed=True'} (%s)"
        )
        level = logging.INFO if expected else logging.WARNING
        logger.log(level, message, len(outside), _some(outside))
    if not datasets:
        raise InputDataError(
            "No run is left, as all have a value that the search space has no place for: add it to "
            "the search space, or leave the table out."
            + "".join(f" Maybe another unit: {suspicion}." for suspicion in suspicions)
            if displaced
            else f"No run has a finite outcome in the column {outcome!r}: there are no source data "
            "in this table."
        )
    return datasets


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


def in_logarithms(frame: DataFrame, outcome: str, noise: str | None = None) -> DataFrame:
    """Replaces an outcome by its natural logarithm, and its standard errors by relative ones.

    Args:
        frame: A table; it may lack the columns.
        outcome: The column of the outcome. Infinite and empty cells, and text, stay as they are.
        noise: The column of its standard errors.

    Returns:
        A table with the new columns.

    Raises:
        InputDataError: If an outcome is not positive.

    Example:
        >>> from pandas import DataFrame
        >>> frame = DataFrame({"loss": [1.0, 10.0, None], "sem": [0.1, 1.0, None]})
        >>> in_logarithms(frame, "loss", "sem").round(2).to_numpy().tolist()
        [[0.0, 0.1], [2.3, 0.1], [nan, nan]]
    """
    if outcome not in frame.columns:
        return frame
    values = numbers(frame, outcome)
    finite = np.isfinite(values)
    problem = ", which has no logarithm: leave log out, or drop the row"
    refuse_cell(finite & (values <= 0), frame[outcome], problem)
    values = np.where(finite, values, 1.0)
    frame = frame.copy(deep=False)
    if noise is not None and noise in frame.columns:
        frame[noise] = numbers(frame, noise) / values
    cells = np.where(finite, np.log(values), frame[outcome].to_numpy(dtype=object))
    frame[outcome] = Series(cells, frame.index).infer_objects()
    return frame


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


def failed_inputs(
    frame: DataFrame,
    space: SearchSpace,
    outcomes: Sequence[str],
    task: str,
    *,
    status: str = "status",
    missing: Mapping[str, Any] | None = None,
) -> torch.Tensor:
    """Places the failed runs of a table in the search space.

    Failed are those that :func:`has_failed` finds; in a table without a status, those with empty
    cells as outcomes, too. Runs of a task in which none succeeded say nothing, nor do failed runs
    that lack a parameter's value.

    Args:
        frame: A table that :func:`from_dataframe` takes.
        space: The search space.
        outcomes: The columns of outcomes; a table may lack some.
        task: The column with the name of the task.
        status: The column that says whether a run has failed.
        missing: As :func:`from_dataframe` takes it.

    Returns:
        An ``f x d`` tensor in double precision.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.search_space import FloatParameter, SearchSpace
        >>> runs = DataFrame({"task": "monday", "C": [1.0, 10.0], "loss": [0.3, np.nan]})
        >>> space = SearchSpace([FloatParameter("C", 1.0, 100.0, log=True)])
        >>> failed_inputs(runs, space, ["loss"], "task")
        tensor([[0.5000]], dtype=torch.float64)
    """
    known = [name for name in outcomes if name in frame.columns]
    (frame,) = measured([frame], [Outcome(name, 0.0) for name in known], status, task)
    Y = np.stack([numbers(frame, name) for name in known], axis=1)
    succeeded = np.isfinite(Y).any(axis=1)
    failed = has_failed(frame, Y)
    if status not in frame.columns:
        failed |= ~succeeded & (frame[FATE] != "ended").to_numpy()
    found = [torch.empty(0, space.dim, dtype=torch.double)]
    for name, rows in rows_of_tasks(frame[task]).items() if failed.any() else ():
        if failed[rows].any() and (succeeded & ~failed)[rows].any():
            runs = _fill(name, frame.iloc[rows], space, missing or {}, changed=True)
            found += _places(runs[failed[rows]], space)
    return torch.cat(found)


def _places(runs: DataFrame, space: SearchSpace) -> list[torch.Tensor]:
    """Inputs of the runs that have a place, one by one if one of them lacks a value."""
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
        lacking = [
            c
            for c in parameter.columns
            if c not in runs or (runs[c].isna().all() and not parameter.may_be_empty)
        ]
        unknown = [c for c in lacking if missing.get(c) is None and (c in missing or changed)]
        if unknown and len(unknown) == len(parameter.columns):
            values = unknown_values(parameter, len(runs), seed=f"{name}/{parameter.name}")
            for column in unknown:
                runs[column] = values[column].to_numpy()
            continue
        for column in lacking:
            if missing.get(column) is not None:
                runs[column] = missing[column]
            elif parameter.active_if is None:
                raise InputDataError(
                    f"Task {name!r} has no values of parameter {column!r}: give the value that it "
                    f"had by missing={{{column!r}: ...}}, drop the task, or take the parameter "
                    "out of the search space."
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


def renamed(frame: DataFrame, rename: Mapping[str, str]) -> DataFrame:
    """Renames columns of a table of old runs.

    Args:
        frame: The table.
        rename: New names by old ones.

    Returns:
        The table with the new names.

    Raises:
        InputDataError: If there is no such column, or the new name is taken.
    """
    new_names = list(rename.values())
    if twice := [name for name in new_names if new_names.count(name) > 1]:
        raise InputDataError(f"rename gives two columns the name {twice[0]!r}: drop one of them.")
    for old, new in rename.items():
        if old not in frame.columns:
            raise InputDataError(
                f"rename has the column {old!r}, which the table lacks{_hint(old, frame.columns)}: "
                "correct the old name."
            )
        if new in frame.columns and new not in rename:
            raise InputDataError(
                f"rename gives the column {old!r} the name {new!r}, which another column has: drop "
                "one of them."
            )
    return frame.rename(columns=dict(rename)) if rename else frame


ENOUGH_LETTERS = 3
"""The fewest letters that may stand for a longer name, as ``mom`` for ``momentum``."""


def likely_column(name: str, columns: Collection[Any]) -> str | None:
    """Finds the column that is most likely meant by a name that a table lacks.

    Args:
        name: The name.
        columns: The table's columns.

    Returns:
        A column with a similar name, a shorter or longer form of it, or the name's initials, if
        there is one.

    Example:
        >>> likely_column("learning_rate", ["Learning rate", "momentum"])
        'Learning rate'
        >>> likely_column("wd", ["weight_decay"])
        'weight_decay'
    """
    letters, initials = _forms(name)
    known: dict[str, str] = {}
    for column in map(str, columns):
        its_letters, its_initials = _forms(column)
        if letters in (its_letters, its_initials) or initials == its_letters:
            return column
        shorter, longer = sorted((letters, its_letters), key=len)
        if len(shorter) >= ENOUGH_LETTERS and longer.startswith(shorter):
            return column
        known.setdefault(its_letters, column)
    close = difflib.get_close_matches(letters, known, n=1, cutoff=0.75)
    return known[close[0]] if close else None


def _forms(name: str) -> tuple[str, str | None]:
    """The letters and digits of a name, and the initials of its words if there are several."""
    words = re.findall(r"[^\W_]+", name.casefold())
    return "".join(words), "".join(word[0] for word in words) if len(words) > 1 else None


def _hint(name: str, columns: Collection[Any]) -> str:
    likely = likely_column(name, columns)
    return f" (but {likely!r})" if likely is not None else ""


def _check_columns(frame: DataFrame, space: SearchSpace, others: Mapping[str, Any]) -> None:
    """Refuses columns that are absent, occur twice, or are read as two things."""
    used: dict[str, str] = {}
    for argument, column in others.items():
        if not isinstance(column, Hashable) or column is None:
            raise TypeError(f"{argument} is {column!r}: give the name of one column.")
        if column not in frame.columns:
            more = ", or add one with the name of each run's problem" if argument == "task" else ""
            raise InputDataError(
                f"The table has no column {column!r}{_hint(str(column), frame.columns)}: name an "
                f"existing one by {argument}={more}."
            )
        if argument != "task" and column in space.columns:
            used[column] = "a parameter"
        if column in used:
            raise InputDataError(
                f"The column {column!r} is both {used[column]} and what {argument}= names: name "
                "another one."
            )
        used[column] = f"what {argument}= names"
    check_table(frame, [*space.columns, *used])


def _refuse_likely_renames(
    frame: DataFrame,
    space: SearchSpace,
    missing: Mapping[str, Any],
    others: Iterable[str],
    changed: bool,
) -> None:
    """Refuses a parameter that looks unrecorded because its column has another name."""
    known = {*space.columns, *others}
    left = [column for column in frame.columns if column not in known]
    for name in space.columns:
        if name not in frame.columns and name not in missing:
            if likely := likely_column(name, left):
                raise InputDataError(
                    f"The table has no column of parameter {name!r}, but one of {likely!r}: if "
                    f"they are the same, say rename={{{likely!r}: {name!r}}} or rename it in the "
                    f"table; if not, give the value that {name!r} had by missing={{{name!r}: ...}},"
                    " None if it is unknown."
                )
            if changed:
                logger.info("No old run records %r: sources say nothing of it", name)
    if changed and not any(name in frame.columns for name in space.columns):
        raise InputDataError(
            f"The table has none of the parameters {', '.join(space.columns)}: name its columns by "
            "rename={'old name': 'new name'}."
        )


def variances(
    frame: DataFrame, column: str | None, has_outcome: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Squares the standard errors of runs.

    Args:
        frame: A table with ``n`` rows that :func:`~.measurements.measured` has read.
        column: The column of the standard errors; the table may lack it.
        has_outcome: An ``n`` array: which runs have an outcome. Others get the largest variance.

    Returns:
        An ``n`` array; NaN if no run has a standard error.
    """
    squares = numbers(frame, column) ** 2
    return np.where(has_outcome, squares, squares[has_outcome].max(initial=-np.inf))


def _counted(values: Iterable[Any]) -> str:
    """The most frequent values with their numbers, and how many others there are."""
    counts = Counter("empty" if isna(value) else repr(plain(value)) for value in values)
    common = [f"{value} ({number:,})" for value, number in counts.most_common(MAX_COUNTED)]
    more = len(counts) - len(common)
    return ", ".join(common) + (f" and {more:,} more" if more else "")


def _some(runs: Sequence[tuple[str, Any]]) -> str:
    """The tasks of runs, and the first row."""
    return f"task {_counted(name for name, _ in runs)}, from row {runs[0][1]} on"


def _differ_by_factors(losses: Sequence[NDArray[np.float64]]) -> bool:
    """Whether the median task's best loss is a small part of its median loss."""
    if min(map(np.min, losses), default=0.0) <= 0:
        return False
    return bool(np.median([np.median(Y) / Y.min() for Y in losses]) > MANY_TIMES)


def _log(Y: NDArray[np.float64], outcome: str, failed: str, without_outcome: list[str]) -> None:
    count = int((~np.isfinite(Y)).sum())
    if count == 0:
        return
    treatment = "left out" if failed == "drop" else "those that failed get their task's worst one"
    message = f"{count:,} of {len(Y):,} runs have no finite outcome {outcome!r}: {treatment}"
    if without_outcome:
        message += f"; left out without any finite outcome: {', '.join(map(repr, without_outcome))}"
    logger.log(logging.WARNING if without_outcome else logging.INFO, message)
