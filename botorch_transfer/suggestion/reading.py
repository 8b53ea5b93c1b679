"""Reads tables: what the outcomes are, the old runs as source data, and the runs of this study.

:func:`read_study` does it for ``suggest`` and the command line. The Optuna sampler reads studies,
and makes :class:`EncodedTables` itself.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import SupervisedDataset
from pandas import DataFrame, concat, to_numeric
from torch import Tensor
from torch.special import ndtri

from botorch_transfer.curves.tables import CurveColumns, one_row_a_run, variance_column
from botorch_transfer.data.tables import (
    failed_inputs,
    from_dataframe,
    has_failed,
    in_logarithms,
    likely_column,
    numbers,
    refuse_cell,
    renamed,
    variances,
)
from botorch_transfer.data.units import Range, wrong_outcomes
from botorch_transfer.prior import TransferPrior
from botorch_transfer.search_space import SearchSpace, guess_space
from botorch_transfer.search_space.cells import errors_in, with_numbers
from botorch_transfer.suggestion.linear import read_constraint
from botorch_transfer.suggestion.region import Region

logger = logging.getLogger(__name__)

Goal = Literal["min", "max"]

LEVELS = (torch.arange(500, dtype=torch.double) + 0.5) / 500
"""Probabilities of equally likely quantiles, by which what has no closed form is averaged."""

SLIGHTLY, SAME_PLACE = 0.1, 1e-4
"""Runs of this study may lie outside of a range by the first share of it; a share of at most the
second is a rounding error."""

ADDED = ("expected_improvement", "sources", "predicted_mean", "predicted_std")
"""Columns that suggestions add to the parameters."""


@dataclass(frozen=True)
class Outcome:
    """One outcome of the target task: an objective, or what has a limit.

    Args:
        name: The column.
        sign: -1 if small outcomes are good; models are of the outcome times the sign.
        limit: The least value of the modelled outcome, for a constraint.
        noise: The column of its standard errors.
        log: Whether models are of the outcome's logarithm, times the sign.
        within: The least and the largest value that the outcome can have; predictions beyond them
            count as these. The quantiles of what is clipped are the clipped quantiles, whatever the
            model, and an outcome may really be at a bound, as a yield of 0 %.

    Example:
        >>> Outcome("loss", sign=-1.0).goal
        'min'
    """

    name: str
    sign: float
    limit: float | None = None
    noise: str | None = None
    log: bool = False
    within: Range | None = None

    @property
    def goal(self) -> Goal:
        """Whether small or large outcomes are good."""
        return "max" if self.sign > 0 else "min"

    @property
    def columns(self) -> list[str]:
        """The columns of its numbers."""
        return [column for column in (self.name, self.noise) if column is not None]

    @property
    def is_objective(self) -> bool:
        """Whether it is to be improved, and has no limit."""
        return self.limit is None

    def predicted(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Converts a model's moments to the outcome's mean and standard deviation."""
        if self.within is not None:
            std, mean = torch.std_mean(self.quantiles(mean, variance, LEVELS), dim=-1, correction=0)
            return mean, std
        mean, variance = self.sign * mean, variance.clamp_min(0)
        if not self.log:
            return mean, variance.sqrt()
        mean = (mean + variance / 2).exp()  # of a log-normal distribution
        return mean, mean * variance.expm1().sqrt()

    def quantiles(self, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """Converts a model's moments to quantiles of the outcome.

        Args:
            mean: An ``n`` tensor.
            variance: An ``n`` tensor.
            levels: A ``k`` tensor of probabilities.

        Returns:
            An ``n x k`` tensor.
        """
        std = variance.clamp_min(0).sqrt().unsqueeze(-1)
        values = self.original(mean.unsqueeze(-1) + self.sign * std * ndtri(levels).to(std))
        return values if self.within is None else values.clamp(*self.within)

    def original(self, Y: Tensor) -> Tensor:
        """Converts modelled outcomes, which are to be maximized, to the user's."""
        return (self.sign * Y).exp() if self.log else self.sign * Y

    def improvement(self, mean: Tensor, variance: Tensor, best: Tensor) -> Tensor:
        """Computes by how much the outcome is expected to be better than the best one so far.

        Args:
            mean: An ``n`` tensor, of the model.
            variance: An ``n`` tensor.
            best: The best modelled outcome so far.

        Returns:
            An ``n`` tensor in the outcome's unit: the mean of improvements, none counting as zero.
        """
        values = self.quantiles(mean, variance, LEVELS)
        return (self.sign * (values - self.original(best))).clamp_min(0.0).mean(dim=-1)


class Runs(NamedTuple):
    """The runs of this study.

    Args:
        X: An ``n x d`` tensor of inputs with known outcomes.
        Y: An ``n x m`` tensor of outcomes to be maximized.
        Yvar: An ``n x m`` tensor of noise variances; a column of NaN if it is not known.
        waiting: A ``p x d`` tensor of inputs of pending runs.
        failed: An ``f x d`` tensor of inputs of failed runs.
        added: An ``n x m`` tensor of variances that come on top of the noise: outcomes of runs that
            were stopped early are predictions.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    waiting: Tensor
    failed: Tensor
    added: Tensor | None = None

    @property
    def awaited(self) -> Tensor:
        """Inputs that have outcomes or will have them."""
        return torch.cat([self.X, self.waiting])


class EncodedTables(NamedTuple):
    """What the tables say, encoded for models.

    Args:
        space: The search space.
        region: The rows of it that may be suggested.
        outcomes: What the outcomes are; an objective first.
        sources: By outcome the prior, or the source data that :func:`from_dataframe` makes;
            ``None`` for an outcome that no old run has. Its model is a plain GP. If no outcome has
            any, a study starts with a first design.
        runs: The runs of this study.
        old_failed: An ``f x d`` tensor of inputs of old runs that failed.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> runs = DataFrame({"C": [1.0, 5.0], "loss": [0.4, None]})
        >>> tables = read_study(space, old, runs)
        >>> len(tables.runs.X), len(tables.runs.waiting)
        (1, 1)
    """

    space: SearchSpace
    region: Region
    outcomes: Sequence[Outcome]
    sources: Mapping[str, Any]
    runs: Runs
    old_failed: Tensor | None = None

    @property
    def has_sources(self) -> bool:
        """Whether some outcome has source data or a prior."""
        return any(source is not None for source in self.sources.values())


# --------------------------------------------------------------------------------------- outcomes


def read_outcomes(
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    constraints: Mapping[str, str] | None = None,
    noise: str | Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    outcome_range: Range | Mapping[str, Range] | None = None,
) -> list[Outcome]:
    """Reads what the outcomes are; all arguments are those of :func:`suggest`.

    Args:
        outcome: The columns of the objectives.
        goal: Whether small or large ones are good.
        constraints: Limits of further outcomes.
        noise: The columns of standard errors.
        log: Outcomes to model by their logarithm.
        outcome_range: The values that outcomes can have.

    Returns:
        The objectives, then the outcomes with limits.

    Raises:
        ValueError: If the arguments contradict one another.

    Example:
        >>> [outcome.name for outcome in read_outcomes("loss", "min", {"memory": "<= 5"})]
        ['loss', 'memory']
    """
    names = [outcome] if isinstance(outcome, str) else list(outcome)
    if goal is None:
        goal = "min"
        if names != ["loss"]:
            logger.warning(
                "Small values of %s are taken to be good; else say goal='max' (--goal max)",
                " and ".join(map(str, names)),
            )
    goals = [goal] if isinstance(goal, str) else list(goal)
    goals = goals * len(names) if len(goals) == 1 else goals
    if not names or len(goals) != len(names):
        raise ValueError(
            f"There are {len(names)} outcomes and {len(goals)} goals: give one goal for each "
            "outcome, and at least one outcome."
        )
    if bad := [value for value in goals if value not in ("min", "max")]:
        raise ValueError(f"goal is {bad[0]!r}: use 'min' or 'max'.")
    objectives = [
        Outcome(name, 1.0 if value == "max" else -1.0)
        for name, value in zip(names, goals, strict=True)
    ]
    limited = [_read_constraint(name, text) for name, text in (constraints or {}).items()]
    if isinstance(noise, str):
        if len(objectives + limited) > 1:
            raise ValueError(
                f"noise is {noise!r} for {len(objectives + limited)} outcomes: give a mapping from "
                "outcomes to columns of standard errors."
            )
        noise = {names[0]: noise}
    if outcome_range is not None and not isinstance(outcome_range, Mapping):
        outcome_range = dict.fromkeys(names, outcome_range)
    noise, ranges = noise or {}, outcome_range or {}
    names = [outcome.name for outcome in objectives + limited]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"The outcome {twice[0]!r} is named twice: name it once.")
    _check_known("noise", noise, names)
    _check_known("outcome_range", ranges, names)
    for name, within in ranges.items():
        if len(tuple(within)) != 2 or not within[0] < within[1]:
            raise ValueError(
                f"outcome_range of {name!r} is {within!r}: give its least and its largest value."
            )
    outcomes = [
        replace(outcome, noise=noise.get(outcome.name), within=ranges.get(outcome.name))
        for outcome in objectives + limited
    ]
    return with_logarithms(outcomes, log)


def _check_known(argument: str, given: Iterable[str], names: Collection[str]) -> None:
    if unknown := set(given) - set(names):
        raise ValueError(f"{argument} names {min(unknown)!r}, which is no outcome.")


def _split_constraints(
    constraints: Mapping[str, str] | Sequence[str] | None, parameters: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Tells limits of outcomes, by name, from constraints between parameters.

    A text that compares one name, which is no parameter, with a number is a limit of an outcome.
    """
    if isinstance(constraints, str):
        raise TypeError(f"constraints is {constraints!r}: put the one into a list.")
    if constraints is None or isinstance(constraints, Mapping):
        return dict(constraints or {}), []
    limits, linear = {}, []
    for text in constraints:
        parts = re.fullmatch(r"\s*`?([^<>=+*`]+?)`?\s*([<>]=?[^<>=]+)", str(text))
        if parts is not None and parts[1] not in parameters:
            limits[parts[1]] = parts[2]
        else:
            linear.append(text)
    return limits, linear


def _read_constraint(name: str, text: str) -> Outcome:
    parts = re.fullmatch(r"\s*([<>])=?\s*(\S+)\s*", str(text))
    bound = float(to_numeric(parts[2], errors="coerce")) if parts else math.nan
    if parts is None or not math.isfinite(bound):
        raise ValueError(f"The constraint on {name!r} is {text!r}: write it as '<= 5' or '>= 5'.")
    sign = 1.0 if parts[1] == ">" else -1.0
    return Outcome(name, sign, limit=sign * bound)


def with_logarithms(outcomes: Sequence[Outcome], log: bool | str | Sequence[str]) -> list[Outcome]:
    """Marks the outcomes that are modelled by their logarithm.

    Args:
        outcomes: What the outcomes are.
        log: The names of some of them; ``True`` for all objectives.

    Returns:
        The outcomes, with the logarithms of limits.

    Raises:
        ValueError: If a name is no outcome's, or a limit has no logarithm.

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
    if outcome.limit is None:
        return replace(outcome, log=True)
    bound = outcome.sign * outcome.limit
    if bound <= 0:
        raise ValueError(
            f"The constraint on {outcome.name!r} has no logarithm: leave it out of log."
        )
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
) -> EncodedTables:
    """Reads all that :func:`suggest` is told of tables and outcomes; so are its arguments.

    Args:
        space: The search space.
        history: Old runs of other tasks.
        runs: The runs of this study.
        outcome: The columns of the objectives.
        goal: Whether small or large ones are good.
        task: The column of ``history`` that names the task.
        candidates: The rows to choose from.
        fixed: Values of parameters that suggestions have.
        constraints: Limits of further outcomes, and linear constraints between parameters.
        repeats: Whether rows of the runs may be suggested again.
        prior: The prior, in place of ``history``.
        noise: The columns of standard errors.
        status: The column that says whether a run failed.
        missing: Values of parameters that old tasks do not record.
        rename: New names of columns of ``history`` by their old ones.
        log: Outcomes to model by their logarithm.
        step: The column of a learning curve's step.
        run: The column that names a run.
        outcome_range: The values that outcomes can have.

    Returns:
        What the tables say.

    Raises:
        InputDataError: If a column is missing, or a value is none of the space's.
        TypeError: If an argument is of another type.
        ValueError: If arguments contradict one another.

    Example:
        >>> from pandas import DataFrame
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> tables = read_study(SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)]), old)
        >>> tables.sources["loss"]["monday"].Y.flatten().tolist()
        [-0.5, -0.2, -0.4]
    """
    for name, table in {"history": history, "runs": runs, "candidates": candidates}.items():
        if table is not None and not isinstance(table, DataFrame):
            raise TypeError(
                f"{name} is a {type(table).__name__}: give one DataFrame, as read_table does; "
                "pandas.concat joins several."
            )
    if history is not None and prior is not None:
        raise ValueError("Give either a history or a prior, not both.")
    if history is not None:
        history = renamed(history, rename or {})
    if isinstance(space, Mapping):
        space = SearchSpace.from_dict(space)
    parameters = getattr(candidates if space is None else space, "columns", ())
    limits, between = _split_constraints(constraints, parameters)
    outcomes = read_outcomes(outcome, goal, limits, noise, log, outcome_range)
    columns = [column for each in outcomes for column in each.columns]
    if space is None and candidates is not None:
        both = [candidates] if history is None else [candidates, history]
        known = concat(both, join="inner", ignore_index=True)
        known = known if runs is None else concat([known, runs.filter(list(known))])
        space = guess_space(known, [task, status, *columns])
    if not isinstance(space, SearchSpace):
        raise TypeError(
            f"space is a {type(space).__name__}: give a SearchSpace or a dictionary; only "
            "candidates= makes up for it."
        )
    if fixed is not None and not isinstance(fixed, Mapping):
        raise TypeError(f"fixed is {fixed!r}: give a dictionary with names as keys.")
    linear = [constraint for text in between for constraint in read_constraint(text, space)]
    if candidates is not None:
        candidates = with_numbers(candidates, space.number_columns)
        # What a suggestion adds is none of its further columns.
        candidates = candidates.drop(columns=[*ADDED, *columns], errors="ignore")
    region = Region(space, fixed, linear, candidates, repeats)
    if history is not None:
        history = with_numbers(history, [*space.number_columns, *columns])
    if step is not None:
        of_curves = CurveColumns(step, space.columns if run is None else [run], status)
        history, runs = one_row_a_run(history, runs, outcomes, of_curves, task)
    _check_names(space, outcomes, [table for table in (history, runs) if table is not None])
    names = [each.name for each in outcomes]
    sources, old_failed = dict[str, Any].fromkeys(names), None
    if prior is not None:
        sources = {name: _read_prior(name, prior, len(names)) for name in names}
    if history is not None:
        sources = {o.name: read_source(history, space, o, task, missing) for o in outcomes}
        old_failed = failed_inputs(history, space, names, task, status=status, missing=missing)
    for each in outcomes:
        if suspicion := wrong_outcomes(history, runs, each.name, each.within):
            logger.warning("Maybe another unit: %s", suspicion)
    read = read_runs(space, runs, outcomes, status)
    return EncodedTables(space, region, outcomes, sources, read, old_failed)


def _check_names(
    space: SearchSpace, outcomes: Sequence[Outcome], tables: Sequence[DataFrame]
) -> None:
    """Refuses names that are used twice, and columns of noise that no table has."""
    for outcome in outcomes:
        if not outcome.is_objective and outcome.name in space.columns:
            raise ValueError(
                f"The constraint is on the parameter {outcome.name!r}, but constraints are on "
                "outcomes: narrow the parameter's range in the search space."
            )
    taken = {*ADDED, *(outcome.name for outcome in outcomes)}
    if clash := [name for name in space.columns if name in taken]:
        raise ValueError(f"The parameter {clash[0]!r} has the name of another column: rename it.")
    known = {column for table in tables for column in table.columns}
    for outcome in outcomes:
        if known and outcome.noise is not None and outcome.noise not in known:
            raise InputDataError(
                f"No table has the column {outcome.noise!r}: name an existing one by noise=."
            )


def read_source(
    history: DataFrame,
    space: SearchSpace,
    outcome: Outcome,
    task: str,
    missing: Mapping[str, Any] | None = None,
) -> dict[str, SupervisedDataset]:
    """Makes source data of one outcome of old runs, whose search space may have been another.

    Args:
        history: Old runs of other tasks.
        space: The search space.
        outcome: The outcome.
        task: The column that names the task.
        missing: Values of parameters that old tasks do not record.

    Returns:
        The source data, to be maximized, by task.
    """
    return from_dataframe(
        history,
        space,
        outcome.name,
        task,
        goal=outcome.goal,
        noise=outcome.noise if outcome.noise in history.columns else None,
        missing=missing,
        changed=True,
        log=outcome.log,
    )


def _read_prior(name: str, prior: Any, num_outcomes: int) -> Any:
    """The prior of one outcome."""
    if isinstance(prior, Mapping) and name in prior:
        prior = prior[name]
    elif num_outcomes > 1:
        prior = None
    # The priors of a model's members are a mapping, too.
    parts = prior.values() if isinstance(prior, Mapping) else [prior]
    if not all(isinstance(part, TransferPrior) for part in parts):
        raise TypeError(
            f"There is no prior of the outcome {name!r}: give one such as SourceGPs.load(path), in "
            "a mapping by outcome if there are several."
        )
    return prior


# ------------------------------------------------------------------------------------------- runs


def read_runs(
    space: SearchSpace, runs: DataFrame | None, outcomes: Sequence[Outcome], status: str
) -> Runs:
    """Encodes the runs of this study, and tells which of them are pending or have failed.

    Args:
        space: The search space.
        runs: The runs, maybe none.
        outcomes: What the outcomes are.
        status: The column that says whether a run has failed.

    Returns:
        The runs.

    Raises:
        InputDataError: If a parameter's column is missing, or a value is none of the space's.
    """
    if runs is None or runs.empty:
        runs = DataFrame(columns=space.columns)
    columns = [column for outcome in outcomes for column in outcome.columns]
    spare = [name for name in runs.columns if name not in {*space.columns, status, *columns}]
    for name in (*space.columns, *(outcome.name for outcome in outcomes)):
        if name not in runs.columns and (likely := likely_column(name, spare)):
            of, kind = ("of parameter ", "parameter") if name in space.columns else ("", "outcome")
            raise InputDataError(
                f"The runs have no column {of}{name!r}, but one of {likely!r}: rename it if that "
                f"is the {kind}, or drop it."
            )
    runs = with_numbers(runs, [*space.number_columns, *columns])
    X = _place_runs(space, runs)
    with errors_in("In the runs"):
        for outcome in outcomes:
            if outcome.log:
                runs = in_logarithms(runs, outcome.name, outcome.noise)
        for name in columns:
            _refuse_text(runs, name)
    Y = np.stack([outcome.sign * numbers(runs, outcome.name) for outcome in outcomes], axis=1)
    failed = has_failed(runs, Y, status)
    pending = ~failed & np.isnan(Y).any(axis=1)
    done = ~failed & ~pending
    with errors_in("In the runs"):
        Yvar = np.stack([variances(runs, outcome.noise, done) for outcome in outcomes], axis=1)
    added = np.stack([numbers(runs, variance_column(o.name)) for o in outcomes], axis=1)
    known = (torch.from_numpy(values[done]) for values in (Y, Yvar, np.nan_to_num(added)))
    known_Y, known_Yvar, known_added = known
    return Runs(X[done], known_Y, known_Yvar, X[pending], X[failed], known_added)


def _place_runs(space: SearchSpace, runs: DataFrame) -> Tensor:
    """Encodes runs, those slightly outside of a range at their place; refuses others."""
    with errors_in("In the runs"):
        X = space.place(runs)
        beyond = (-X).maximum(X - 1).amax(dim=-1)
        other = ~((beyond > 0) & (beyond <= SLIGHTLY))
        X[other] = space.encode(runs[other.numpy()])
    outside = runs.index[(beyond > SAME_PLACE).numpy()].tolist()
    if outside:
        logger.info(
            "%d of the runs lie slightly outside of the search space, and are kept where they are "
            "(row %s)",
            len(outside),
            ", ".join(map(str, outside[:5])) + (", ..." if len(outside) > 5 else ""),
        )
    return X


def _refuse_text(runs: DataFrame, name: str) -> None:
    if name in runs.columns:
        text = np.isnan(numbers(runs, name)) & runs[name].notna().to_numpy()
        problem = (
            ", which is no number: correct it, or empty the cell; if the run failed, and is not "
            "pending, write 'failed' into a column 'status'"
        )
        refuse_cell(text, runs[name], problem)
