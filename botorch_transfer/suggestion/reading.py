"""Reads tables: the outcomes, the old runs as source data, and the runs of this study.

:func:`read_study` checks the arguments of ``suggest`` and of the command line. :func:`read_tables`
encodes the tables, also for the Optuna sampler.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame, concat, to_numeric
from torch import Tensor

from botorch_transfer.curves import CurveColumns, OwnCurves, one_row_a_run
from botorch_transfer.data.columns import check_columns, renamed
from botorch_transfer.data.measurements import (
    Goal,
    Outcome,
    Range,
    measured,
    numbers,
    warn_of_status,
)
from botorch_transfer.data.tables import Runs, limit_task, read_history, read_runs, without_repeats
from botorch_transfer.data.units import STUDY, wrong_outcomes, wrong_units
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.outcome_transforms import (
    FEW_OUTCOMES,
    PooledStandardize,
    another_unit,
    chained,
    limit_outcomes,
    robust_limit,
)
from botorch_transfer.prior import TransferPrior
from botorch_transfer.search_space import SearchSpace, guess_space
from botorch_transfer.search_space.cells import (
    check_same_units,
    errors_in,
    in_per_cent,
    likely_column,
    log_cell,
    rows_of_tasks,
    warn_of_summaries,
    with_known,
    with_numbers,
)
from botorch_transfer.search_space.guess import NOTES, STEPS, checked_goals, warn_of_relations
from botorch_transfer.search_space.space import check_arguments, check_table
from botorch_transfer.suggestion.constraints import names_some, read_constraint, with_operators
from botorch_transfer.suggestion.outcomes import old_tasks
from botorch_transfer.suggestion.region import Region

logger = logging.getLogger(__name__)

#: Assumed distance between the best and the worst outcome of an old task, if there is only a prior.
#: The unit is the standard deviation of the prior's outcomes.
DEPTH = 4.0

#: A range is reported if more than ``ENOUGH`` different values of all runs are in less than the
#: share ``SMALL_PART`` of the range. Equal outcomes of a study are reported if more than the share
#: ``MOST`` of the old outcomes are different.
SMALL_PART, ENOUGH, MOST = 0.2, 4, 0.9

IMPROVEMENTS = "expected_improvement", "probability_of_improvement"
#: Columns that :func:`suggest` adds to the parameters.
ADDED = (*IMPROVEMENTS, "sources", "predicted_mean", "predicted_std")


class EncodedTables(NamedTuple):
    """Old runs and this study's runs, encoded as tensors for models.

    Use it if you suggest rows and also predict rows: the tables of runs are then read only once.

    Args:
        region: The rows of the search space that may be suggested.
        outcomes: The outcomes; the first outcome is an objective.
        sources: For each outcome, a prior, or source data as :func:`from_dataframe` returns. The
            entry is ``None`` if no old run has the outcome. The outcome's model is then a plain GP.
            If all entries are ``None``, the study starts with a space-filling first design.
        old_failed: An ``f x d`` tensor of the inputs of failed old runs; ``None`` if there is no
            table of old runs.
        runs: The runs of this study.
        is_robust: Whether very bad outcomes have been clipped at a limit, see :meth:`limited`.
        curves: The learning curves of this study's runs, by outcome.
        given: The tables before encoding. Their units are compared with the units of rows to
            predict.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> runs = DataFrame({"C": [1.0, 5.0], "loss": [0.4, None]})
        >>> tables = read_study(space, old, runs)
        >>> len(tables.runs.X), len(tables.runs.waiting)
        (1, 1)
    """

    region: Region
    outcomes: Sequence[Outcome]
    sources: Mapping[str, Any]
    old_failed: Tensor | None
    runs: Runs
    is_robust: bool = False
    curves: Mapping[str, OwnCurves] = MappingProxyType({})
    given: Mapping[str, DataFrame] = MappingProxyType({})

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return self.region.space

    @property
    def has_sources(self) -> bool:
        """Whether at least one outcome has source data or a prior."""
        return any(source is not None for source in self.sources.values())

    def eligible(self, index: int = 0) -> Tensor:
        """Returns the values of an outcome; minus infinity for runs that cannot be the best run.

        Args:
            index: The index of the outcome.

        Returns:
            An ``n`` tensor. Runs that failed, lack the outcome or violate a limit have minus
            infinity. If a complete run remains, runs that were stopped early also have minus
            infinity.
        """
        runs = self.runs
        allowed = runs.succeeded & runs.Y[:, index].isfinite()
        for i, outcome in enumerate(self.outcomes):
            if outcome.limit is not None:
                allowed &= runs.Y[:, i] >= outcome.limit
        Y = runs.Y[:, index].where(allowed, -math.inf)
        complete = Y.where(runs.added[:, index] == 0, -math.inf)
        return complete if bool(complete.isfinite().any()) else Y

    def best_run(self) -> int | None:
        """Returns the index of the best run in ``runs``.

        Returns ``None`` if :meth:`eligible` excludes all runs, or if there are several objectives.
        """
        Y, is_only = self.eligible(), sum(outcome.is_objective for outcome in self.outcomes) == 1
        return int(Y.argmax()) if is_only and bool(Y.isfinite().any()) else None

    def ranked(self) -> EncodedTables:
        """Returns the tables to which :func:`suggest` fits models.

        The result is ``limited(by_rank=True)`` if three conditions hold: :attr:`is_robust` is true,
        there is only one outcome, and this study has fewer than ``FEW_OUTCOMES`` values of this
        outcome. Otherwise, the result is the unchanged tables.
        """
        few = len(self.outcomes) == 1 and len(self.runs.known(0).Y) < FEW_OUTCOMES
        return self.limited(by_rank=True) if self.is_robust and few else self

    def limited(self, by_rank: bool = False) -> EncodedTables:
        """Clips very bad outcomes at a lower limit, in old tasks and in this study's runs.

        Encoded outcomes are to be maximized: bad outcomes are small numbers. The limit of this
        study's runs depends on their outcomes, and on the median over old tasks of the distance
        between a task's best and worst outcome. If ``by_rank`` is false, and at least one value of
        an outcome is clipped, predictions of this outcome are clipped, too, at the worst value that
        remains. If ``by_rank`` is true, predictions are not clipped.

        Args:
            by_rank: Whether to apply :func:`~botorch_transfer.outcome_transforms.raise_worse_half`
                to the outcomes of each old task after clipping.

        Returns:
            The tables with clipped outcomes.
        """
        sources, outcomes = dict(self.sources), list(self.outcomes)
        Y, Yvar, added = (each.clone() for each in (self.runs.Y, self.runs.Yvar, self.runs.added))
        for i, outcome in enumerate(outcomes):
            name, known = outcome.name, Y[Y[:, i].isfinite(), i : i + 1]
            raw = old_tasks(sources[name])
            tasks = {task: limit_task(t, outcome.limit, by_rank) for task, t in raw.items()}
            lowest = robust_limit(known, typical_depth(tasks or sources[name]), outcome.limit)
            before = torch.cat([*(data.Y for data in raw.values()), known])
            after = torch.cat([*(data.Y for data in tasks.values()), known.clamp_min(lowest)])
            if bool((before < after).any()):
                sources[name] = tasks or sources[name]
                for variance in (Yvar, added):
                    variance[:, i] = limit_outcomes(Y[:, i], lowest, variance[:, i])[1]  # type: ignore[assignment]
                Y[:, i] = Y[:, i].clamp_min(lowest)
                if not by_rank:
                    outcomes[i] = outcome.no_worse_than(float(after.min()))
        runs = self.runs._replace(Y=Y, Yvar=Yvar, added=added)
        return self._replace(outcomes=outcomes, sources=sources, runs=runs, is_robust=True)


def typical_depth(source: Any) -> float:
    """Computes the typical distance between the best and the worst outcome of an old task.

    Args:
        source: The prior of an outcome, or the outcome's source data after
            :meth:`EncodedTables.limited`; ``None`` if the outcome has neither.

    Returns:
        The median distance over tasks. For a prior, the distance is :data:`DEPTH` times the
        standard deviation of outcomes. If ``source`` is ``None``, the distance is 0.
    """
    if tasks := old_tasks(source):
        return float(np.median([float(task.Y.max() - task.Y.min()) for task in tasks.values()]))
    prior = next(iter(source.values())) if isinstance(source, Mapping) else source
    transform = None if prior is None else prior.default_outcome_transform(torch.Size())
    if not isinstance(transform, PooledStandardize):
        return 0.0
    transform(torch.empty(0, 1, dtype=torch.double))
    return DEPTH * float(transform.stdvs)


# --------------------------------------------------------------------------------------- outcomes


def read_outcomes(
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    constraints: Mapping[str, str] | None = None,
    noise: str | Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    outcome_range: Range | Mapping[str, Range] | None = None,
) -> list[Outcome]:
    """Makes an :class:`Outcome` for each objective and each limit in the arguments of ``suggest``.

    Args:
        outcome: The columns of the objectives.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good.
        constraints: Limits of further outcomes, by the outcome's name.
        noise: The columns of standard errors.
        log: Names of outcomes whose logarithm is modelled.
        outcome_range: The least and the largest possible value of outcomes.

    Returns:
        The objectives, then the outcomes with limits.

    Raises:
        ValueError: If the arguments contradict one another.

    Example:
        >>> [outcome.name for outcome in read_outcomes("loss", "min", {"memory": "<= 5"})]
        ['loss', 'memory']
    """
    names = [outcome] if isinstance(outcome, str) else list(outcome)
    signs = [1.0 if each == "max" else -1.0 for each in checked_goals(names, goal, "min")]
    outcomes = [Outcome(name, sign) for name, sign in zip(names, signs, strict=True)]
    outcomes += [_read_constraint(name, text) for name, text in (constraints or {}).items()]
    if isinstance(noise, str):
        if len(outcomes) > 1:
            text = f"noise is {noise!r} for {len(outcomes)} outcomes"
            raise ValueError(f"{text}: give a mapping from outcomes to columns of standard errors.")
        noise = {names[0]: noise}
    if outcome_range is not None and not isinstance(outcome_range, Mapping):
        outcome_range = dict.fromkeys(names, outcome_range)
    noise, ranges = noise or {}, outcome_range or {}
    names = [each.name for each in outcomes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]!r} is named twice: name it once, in outcome= or constraints=.")
    _check_known("noise", noise, names)
    _check_known("outcome_range", ranges, names)
    for name, within in ranges.items():
        ends = list(within) if isinstance(within, Iterable) else []
        if len(ends) != 2 or {str, type(None)} & {*map(type, ends)} or not ends[0] < ends[1]:
            text = f"outcome_range of {name!r} is {within!r}"
            raise ValueError(f"{text}: give two increasing numbers.")
    outcomes = [replace(o, noise=noise.get(o.name), within=ranges.get(o.name)) for o in outcomes]
    return with_logarithms(outcomes, log)


def _check_known(argument: str, given: Iterable[str], names: Collection[str]) -> None:
    if unknown := set(given) - set(names):
        raise ValueError(f"{argument} names {min(unknown)!r}, not an outcome: correct the name.")


def _split_constraints(
    constraints: Mapping[str, str] | Sequence[str] | None, parameters: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Separates limits of outcomes from constraints between parameters.

    A text that compares a name with a number is a limit if the name is not a parameter.

    Returns:
        The limits by outcome, such as ``"<= 5"``, and the texts of the other constraints.
    """
    if isinstance(constraints, str):
        raise TypeError(f"constraints is {constraints!r}: put the constraint into a list.")
    if constraints is None or isinstance(constraints, Mapping):
        return dict(constraints or {}), []
    limits, linear = dict[str, str](), list[str]()
    limit = r"""\s*(?!not\b|at_most\b|[-.\d]+ *[<>])[`"']?([^<>=+*`"']+?)[`"']?\s*([<>]=?[^<>=]+)"""
    for text in map(with_operators, constraints):
        parts = re.fullmatch(limit, text)
        if parts and parts[1] not in parameters and not names_some(text, parameters):
            if limits.setdefault(parts[1], parts[2]) != parts[2]:
                text = f"{parts[1]!r} has two limits: give one limit. For a window, copy the column"
                raise ValueError(f"{text} under a new name, and limit the copy at the other end.")
        else:
            linear.append(text)
    return limits, linear


def _read_constraint(name: str, text: str) -> Outcome:
    parts = re.fullmatch(r"\s*([<>])=?\s*(\S+)\s*", with_operators(text))
    bound = float(to_numeric(parts[2], errors="coerce")) if parts else math.nan
    if parts is None or not math.isfinite(bound):
        raise ValueError(f"The constraint on {name!r} is {text!r}: write it as '<= 5' or '>= 5'.")
    sign = 1.0 if parts[1] == ">" else -1.0
    return Outcome(name, sign, limit=sign * bound)


def with_logarithms(outcomes: Sequence[Outcome], log: bool | str | Sequence[str]) -> list[Outcome]:
    """Marks the outcomes whose logarithm is modelled.

    Args:
        outcomes: The outcomes.
        log: Names of outcomes whose logarithm is modelled; ``True`` for all objectives.

    Returns:
        The outcomes. The limit of a marked outcome is replaced by the limit's logarithm.

    Raises:
        ValueError: If a name is not the name of an outcome, or a limit has no logarithm.

    Example:
        >>> with_logarithms([Outcome("loss", -1.0)], True)[0].log
        True
    """
    if isinstance(log, bool):
        log = [outcome.name for outcome in outcomes if log and outcome.is_objective]
    marked = [log] if isinstance(log, str) else log
    _check_known("log", marked, [outcome.name for outcome in outcomes])
    return [_in_logarithm(o) if o.name in marked else o for o in outcomes]


def _in_logarithm(outcome: Outcome) -> Outcome:
    if (bound := outcome.bound) is None:
        return replace(outcome, log=True)
    if bound <= 0:
        text = f"{outcome.name!r} has the limit {bound:g}, but log= needs positive limits"
        raise ValueError(f"{text}: omit {outcome.name!r} from log=.")
    return replace(outcome, log=True, limit=outcome.sign * math.log(bound))


# ----------------------------------------------------------------------------------------- tables


def read_study(
    space: SearchSpace | Mapping[str, Any] | None,
    history: DataFrame | None,
    runs: DataFrame | None = None,
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    *,
    task: str = "task",
    candidates: DataFrame | None = None,
    fixed: Mapping[str, Any] | None = None,
    constraints: Mapping[str, str] | Sequence[str] | None = None,
    repeats: bool = False,
    prior: Any = None,
    noise: str | Mapping[str, str] | None = None,
    status: str = "status",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    step: str | None = None,
    run: str | None = None,
    outcome_range: Range | Mapping[str, Range] | None = None,
    cost: str | None = None,
    robust: bool = True,
) -> EncodedTables:
    """Checks and encodes the tables of a study; takes the arguments of :func:`suggest`.

    Args:
        space: The search space.
        history: Old runs of other tasks.
        runs: The runs of this study.
        outcome: The columns of the objectives.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good.
        task: The column of ``history`` that names the task.
        candidates: The rows to choose from.
        fixed: Fixed values of parameters in suggestions.
        constraints: Limits of further outcomes, and constraints between parameters.
        repeats: Whether rows of ``runs`` may be suggested again.
        prior: The prior, in place of ``history``.
        noise: The columns of standard errors.
        status: The column with the state of a run.
        missing: Values of parameters that old tasks do not record, by parameter name.
        rename: A mapping from old to new column names of ``history``.
        log: Names of outcomes whose logarithm is modelled.
        step: The column of a learning curve's step.
        run: The column that identifies a run.
        outcome_range: The least and the largest possible value of outcomes.
        cost: The column of the candidates' costs. This column does not become a parameter.
        robust: Whether very bad outcomes are clipped at a lower limit.

    Returns:
        The encoded tables.

    Raises:
        InputDataError: If a column is missing, or a value is outside of the space.
        TypeError: If an argument has a wrong type.
        ValueError: If arguments contradict one another.

    Example:
        >>> from pandas import DataFrame
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> tables = read_study(SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)]), old)
        >>> tables.sources["loss"]["monday"].Y.flatten().tolist()
        [-0.5, -0.2, -0.4]
    """
    check_arguments(locals())
    if history is not None and prior is not None:
        raise ValueError("Both a history and a prior are given: omit one of the two.")
    if run is not None and step is None:
        raise ValueError("run= is for learning curves: also set step= to the column of steps.")
    if history is not None:
        history = renamed(history, rename or {})
        if history.empty:
            logger.warning("The history has no rows: the search starts without old runs")
            history = None
    space = space if space is None else SearchSpace.of(space)
    used = [*getattr(space or candidates, "columns", ()), task, status, step, run, cost, noise]
    used += [outcome] if isinstance(outcome, str) else outcome
    history, runs, candidates = (
        t if t is None else check_table(t, (), used) for t in (history, runs, candidates)
    )
    tables = [table for table in (history, runs) if table is not None]
    if len(tables) == 2 and task not in tables[0] and task in tables[1]:
        text = f"Only the runs have the column {task!r}, not the history: exchange the two tables."
        raise InputDataError(text)
    columns = getattr(candidates, "columns", ())
    parameters = [c for c in columns if all(c in table for table in tables[:1])]
    parameters = getattr(space, "columns", parameters)
    limits, between = _split_constraints(constraints, parameters)
    if spare := [n for n in limits if n in columns and not any(n in table for table in tables)]:
        raise ValueError(
            f"A constraint uses {spare[0]!r}, a column of the candidates that is not a parameter: "
            "remove the constraint, and delete the candidates that violate it."
        )
    outcomes = read_outcomes(outcome, goal, limits, noise, log, outcome_range)
    columns = [column for each in outcomes for column in each.columns]
    if space is None and candidates is not None:
        known = concat([candidates, history], join="inner", ignore_index=True)  # skips None
        known = concat([known, None if runs is None else runs.filter(list(known))])
        others = [task, status, *columns] if cost is None else [task, status, *columns, cost]
        if known.columns.empty:
            raise InputDataError("No column is in both candidates and history: rename columns.")
        absent: Any = [] if history is None else history.columns.difference([*candidates, *others])
        for name in candidates.select_dtypes("number").columns.difference(known.columns):
            if likely := likely_column(name, absent):
                text = "%r is no parameter: if %r means the same, use one name for both"
                logger.warning(text, name, likely)
        if len(absent):
            logger.info("The candidates lack the columns %s of old runs", ", ".join(absent))
        space = guess_space(known, [name for name in others if name in known])
        known_task = None if history is None or task not in history else task
        for suspicion in wrong_units(history, space, known_task, candidates):
            logger.warning("Maybe another unit: %s", suspicion.replace(STUDY, "the candidates"))
    if space is None:
        raise TypeError("space is None: give a SearchSpace, or give candidates=.")
    fixed, missing = (with_known(given, space.columns) for given in (fixed, missing))
    linear = [constraint for text in between for constraint in read_constraint(text, space)]
    given = {"history": history, "runs": runs, "candidates": candidates}
    given["fixed values"] = DataFrame([fixed]) if fixed else None
    present = {name: table for name, table in given.items() if table is not None}
    check_same_units(present, space.number_columns)
    check_same_units(present, columns, are_outcomes=True)
    if candidates is not None:
        candidates = with_numbers(candidates, space.number_columns)
        # The table that suggest returns has its own columns with these names.
        candidates = candidates.drop(columns=[*ADDED, *columns], errors="ignore")
    region = Region(space, fixed, linear, candidates, repeats, cost)
    if history is not None:
        warn_of_relations(history, space.parameters, between, candidates)
    for each in space.parameters if fixed else ():
        is_known = each.active_if and {each.name, *each.active_if} <= {*(fixed or ())}
        if is_known and region.decode(region.sample(1, seed=0))[each.name].isna().all():
            text = f"Fixed values make {each.name!r} inactive"
            raise ValueError(f"{text}: omit {each.name!r} from fixed=.")
    named = [("noise", each.noise) for each in outcomes]
    named += [("step", step), ("status", status), ("run", run)]
    named = [(argument, column) for argument, column in named if column is not None]
    _check_roles(space, outcomes, [*named, ("task", task)] if history is not None else named)
    searched = {name: table for name, table in present.items() if name in ("history", "runs")}
    roles = [*used, *columns, *space.columns]
    _check_named(named, searched, roles, [task, *space.columns])
    if history is not None:
        shared = () if runs is None else history.columns.intersection(runs.columns)
        if spare := [str(name) for name in shared if name not in roles]:
            logger.info("Columns that are neither parameters nor outcomes: %s", ", ".join(spare))
    for place, table in searched.items() if step is not None else ():
        if run in table and step in table:
            again = table.filter([task, run, step]).duplicated() & table[step].notna()
            log_cell(
                again, table[step], "which its run already has: give each attempt a run of its own"
            )
        if place == "history" and step in table and len(table) > 1 == table[step].nunique():
            logger.warning("All old runs have the same value of %r: correct step=", step)
    key = space.columns if run is None else [run]
    curves = None if step is None else CurveColumns(step, key, status)
    options: dict[str, Any] = {"missing": missing, "curves": curves, "robust": robust}
    read = read_tables(region, outcomes, history, runs, task, status, prior=prior, **options)
    if history is not None:
        _warn_of_constraints(region, history)
    points = [data.X for source in read.sources.values() for data in old_tasks(source).values()]
    X = torch.cat([read.runs.X, *points]).clamp(0.0, 1.0)
    for name, x in zip(space.feature_names, X.T, strict=True):
        is_number = name in space.number_columns and len(x.unique()) > ENOUGH
        if is_number and float(x.max() - x.min()) < SMALL_PART:
            logger.warning("All runs are in a small part of the range of %r: check the range", name)
    if runs is not None and task in {*runs} - {*space.columns}:
        own = [*rows_of_tasks(runs[task].dropna())]
        if len(own) > 1:
            message = "This study's runs have the tasks %r and %r: move old runs to the history, "
            logger.warning(message + "or correct task=", *own[:2])
        elif same := {*own} & {n for source in read.sources.values() for n in old_tasks(source)}:
            message = "The history, too, has runs of this study's task %r: move them to the runs, "
            logger.warning(message + "or rename one of the tasks", *same)
    return read._replace(given=present)


def read_tables(
    region: Region,
    outcomes: Sequence[Outcome],
    history: DataFrame | None,
    runs: DataFrame | None,
    task: str = "task",
    status: str = "status",
    *,
    prior: Any = None,
    missing: Mapping[str, Any] | None = None,
    curves: CurveColumns | None = None,
    robust: bool = True,
    memo: Memo | None = None,
) -> EncodedTables:
    """Encodes tables of old runs and of this study's runs.

    This function is called by :func:`read_study` and by the Optuna sampler. The old runs are
    encoded in one pass, not once for each outcome.

    Args:
        region: The rows that may be suggested.
        outcomes: The outcomes; the first outcome is an objective.
        history: Old runs of other tasks.
        runs: The runs of this study.
        task: The column of ``history`` that names the task.
        status: The column with the state of a run.
        prior: The prior, in place of ``history``.
        missing: Values of parameters that old tasks do not record, by parameter name.
        curves: The columns of learning curves.
        robust: Whether very bad outcomes are clipped at a lower limit.
        memo: A cache of encoded old runs. If the old runs are in the cache, warnings about them are
            not repeated.

    Returns:
        The encoded tables.

    Raises:
        InputDataError: If a column is missing, or a value is outside of the space.
    """
    space, names = region.space, [outcome.name for outcome in outcomes]
    places = "In the history", "In the runs"
    if history is not None:
        kinds = ["outcome" if each.is_objective else "constraints" for each in outcomes]
        named: list[tuple[str, Any]] = [*zip(kinds, names, strict=True), ("task", task)]
        named += [("noise", o.noise) for o in outcomes if o.noise in history.columns]
        with errors_in(places[0]):
            history = check_columns(history, space, named, missing or {}, changed=True)
            history = with_numbers(history, space.number_columns)
    runs = runs if runs is None else with_numbers(runs, space.number_columns)
    used = {*space.columns, task, status, *(name for o in outcomes for name in o.columns)}
    for table in (history, runs):
        warn_of_summaries(table, used)
    history, runs = measured([history, runs], outcomes, status, task, places)
    for table in (history, runs) if curves is None else ():
        warn_of_status(table, outcomes, status)
    if runs is not None and {"predicted_mean", names[0]} <= {*runs}:
        copied = np.isclose(numbers(runs, "predicted_mean"), runs[names[0]], rtol=1e-4, atol=0.0)
        log_cell(copied, runs[names[0]], "which is the predicted_mean: give the measured outcome")
    outcomes = [_in_per_cent(outcome, (history, runs)) for outcome in outcomes]
    own_curves: dict[str, OwnCurves] = {}
    if curves is not None:
        history, runs, own_curves = one_row_a_run(history, runs, outcomes, curves, task)
    if history is not None:
        history = without_repeats(history, runs, space, outcomes, task)
        history = None if history.empty else history
    sources: Any = {name: _read_prior(name, prior, len(names), space) for name in names}
    failed: Tensor | None = None
    if history is not None:
        given = space, outcomes, task, missing
        read = partial(read_history, history, *given, status=status)
        key = content_key(joblib.hash(history), *given, status)
        sources, failed = (memo or Memo(size=1)).recall(key, read)
        objectives = [o.name for o in outcomes if o.is_objective]
        if all(sources[name] is None for name in objectives):
            listed = " or ".join(map(repr, objectives))
            text = f"No run has a finite outcome in the column {listed}"
            raise InputDataError(f"{text}: there are no source data in this table.")
    if curves is None and history is not None:
        _hint_at_steps(history, space, task, used)
    study = read_runs(space, runs, outcomes, status)
    for suspicion in () if runs is None else wrong_units(history, space, task, runs):
        logger.warning("Maybe another unit: %s", suspicion)
    for i, each in enumerate(outcomes):
        old, table = _old_outcomes(sources[each.name], each), history
        times = max(study.known(i).Y.unique(return_counts=True)[1].tolist(), default=0)
        if times > 2 and old is not None and len(old[0].unique()) > MOST * len(old[0]):
            message = "%d runs of this study have the same %r, unlike old runs: check filled cells"
            logger.warning(message, times, each.name)
        if history is None and old is not None:
            mean = each.sign * float(old[0].mean())
            table = DataFrame({each.name: [mean]}, ["'mean of the prior'"])
        problem = wrong_outcomes(each, table, runs)
        if problem is None and old is not None:
            Y = each.sign * each.original(study.known(i).Y)
            problem = another_unit(f"{each.name!r} of this study", Y, *old, each.sign)
        if problem is not None:
            told = "as mean of the prior (maybe fitted with another goal, unit or log=)"
            logger.warning(problem.replace("in row 'mean of the prior' of old runs", told))
    tables = EncodedTables(region, outcomes, sources, failed, study, curves=own_curves)
    if not robust:
        return tables
    limited = tables.limited()
    for before, after in zip(outcomes, limited.outcomes, strict=True):
        if before != after:
            logger.info("Values of %r far worse than their task's median are clipped", before.name)
    return limited


def _old_outcomes(source: Any, outcome: Outcome) -> tuple[Tensor, Tensor] | None:
    """Returns the outcomes of old runs, and the index of the task of each outcome.

    The returned outcomes are in the user's unit, and are negated if small outcomes are good.
    Returns ``None`` if there are no old outcomes.
    """
    if tasks := list(old_tasks(source).values()):
        index = torch.cat([torch.full((len(task.Y),), i) for i, task in enumerate(tasks)])
        return outcome.sign * outcome.original(torch.cat([task.Y for task in tasks])), index
    for prior in source.values() if isinstance(source, Mapping) else [source]:
        if prior is not None and (found := prior.typical_outcomes()) is not None:
            Y, _ = chained(prior.outcome_steps or ()).untransform(found[0].unsqueeze(-1))
            return outcome.sign * outcome.original(Y), found[1]
    return None


def _in_per_cent(outcome: Outcome, tables: Iterable[DataFrame | None]) -> Outcome:
    """Gives an outcome the range ``(0, 100)`` if its name and its values suggest per cent."""
    values = np.concatenate([*(numbers(t, outcome.name) for t in tables if t is not None), []])
    values = values[np.isfinite(values)]
    is_named = outcome.within is None and in_per_cent(outcome.name)
    if not is_named or not ((values >= 0) & (values <= 100)).all() or not (values > 1).any():
        return outcome
    logger.info("%r is in per cent: predictions are clipped to the range [0, 100]", outcome.name)
    return replace(outcome, within=(0.0, 100.0))


def _warn_of_constraints(region: Region, history: DataFrame) -> None:
    """Warns of linear constraints that all old runs clearly violate."""
    for each in region.constraints:
        sums = np.sum([w * numbers(history, name) for name, w in each.weights.items()], axis=0)
        gaps = (each.bound - sums)[np.isfinite(sums)] if each.weights else np.empty(0)
        margin = 0.05 * np.abs(sums).max(initial=0.0)
        is_above = each.is_equality and gaps.max(initial=-np.inf) < -margin
        if len(gaps) >= FEW_OUTCOMES and (gaps.min() > margin or is_above):
            logger.warning("No old run satisfies the constraint %r: check the unit", each.text)


def _hint_at_steps(history: DataFrame, space: SearchSpace, task: str, used: Any) -> None:
    """Warns if a column that is not in ``used`` looks like the steps of learning curves.

    Such a column has a name such as "epoch" and more than two values in a task. Or most rows belong
    to groups of at least three rows with equal parameters, and the column increases in each group.
    """
    keys = [name for name in (task, *space.columns) if name in history]
    runs = history.groupby(keys, dropna=False).ngroup()
    many = runs.map(runs.value_counts()) > 2
    for name, cells in history.select_dtypes("number").items():
        if name in used or NOTES.fullmatch(str(name)):
            continue
        grows = cells[many].groupby(runs[many]).diff().dropna() > 0
        is_named = STEPS.fullmatch(str(name)) and cells.groupby(history[task]).nunique().max() > 2
        if is_named or (2 * many.sum() > len(many) and grows.all() and len(grows)):
            message = "%r looks like the steps of learning curves: set step= to this column"
            logger.warning(message, name)


def _check_named(named: Any, tables: Mapping[str, DataFrame], used: Any, keys: Any) -> None:
    """Raises an error if all tables lack a named column.

    For columns of steps and standard errors, an error is also raised if a table seems to have the
    column under another name. If a table lacks the column of steps, and most of the table's rows
    repeat the task and the parameters (``keys``), a warning is logged.
    """
    for argument, column in named:
        lacking = {place: table for place, table in tables.items() if column not in table}
        for place, table in lacking.items() if argument in ("noise", "step") else ():
            spare = [name for name in table if name not in used]
            steps = [name for name in spare if argument == "step" and STEPS.fullmatch(str(name))]
            if likely := likely_column(column, spare) or next(iter(steps), None):
                text = f"{argument}= is {column!r}, but the column of the {place} may be {likely!r}"
                raise InputDataError(f"{text}: use one name in all tables, or drop {likely!r}.")
            if argument == "step" and table.filter(keys).astype(str).duplicated().mean() > 0.5:
                text = "Most rows of the %s repeat parameters, but there is no column %r: add the "
                logger.warning(text + "column if the rows are learning curves", place, column)
        if tables and len(lacking) == len(tables) and (argument, column) != ("status", "status"):
            text = f"No table has the column {column!r}"
            raise InputDataError(f"{text}: choose an existing column for {argument}=.")


def _check_roles(
    space: SearchSpace, outcomes: Sequence[Outcome], named: Sequence[tuple[str, Any]]
) -> None:
    """Raises an error if one column is used twice, such as a parameter that is also an outcome."""
    roles = dict.fromkeys(space.columns, "a parameter")
    found = [(name, "a column of the result") for name in ADDED]
    found += [(outcome.name, "an outcome") for outcome in outcomes]
    # A parameter may also identify the run.
    found += [(column, f"the column of {name}=") for name, column in named if name != "run"]
    for column, role in found:
        if (other := roles.setdefault(column, role)) != role:
            text = f"{column!r} is both {other} and {role}: use different names."
            raise ValueError(f"{text} To limit a parameter, narrow its range in the search space.")


def _read_prior(name: str, prior: Any, num_outcomes: int, space: SearchSpace) -> Any:
    """Returns the prior of the outcome ``name``; ``None`` if the outcome has no prior."""
    found = prior.get(name, prior) if isinstance(prior, Mapping) else prior
    if found is None:
        return None
    # The prior of an ensemble may itself be a mapping, with the priors of its members.
    parts = found.values() if isinstance(found, Mapping) else [found]
    keys = [*prior] if isinstance(prior, Mapping) else []  # of outcomes, or of several members
    is_own = found is not prior or (num_outcomes == 1 and len(keys) != 1)
    if not is_own or not all(isinstance(part, TransferPrior) for part in parts):
        text = f"There is no prior of the outcome {name!r}{f' in {keys}' * bool(keys)}: load a "
        text += "prior by SourceGPs.load(path), or give a dictionary from outcomes to priors."
        raise TypeError(text)
    for part in parts:
        part.check_inputs(space.feature_names, "The search space")
    return found
