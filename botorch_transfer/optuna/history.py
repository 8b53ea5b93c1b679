"""Optuna's studies as a table of runs with its search space, and distributions as parameters.

Read this for the rules by which trials count (:func:`outcomes_of`, for old studies and for the one
being tuned), for how a distribution with a step is encoded (:func:`parameter_of`), and for what
stands in a table for a choice that cells cannot hold (:func:`label`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage, get_storage
from optuna.study import Study, StudyDirection, load_study
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.reading import Curve
from botorch_transfer.prior import TransferPrior
from botorch_transfer.search_space import (
    MAX_LISTED_VALUES,
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
    SearchSpace,
)
from botorch_transfer.search_space.guess import find_condition
from botorch_transfer.search_space.parameters import ActiveIf

logger = logging.getLogger(__name__)

TASK = "task"

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class OptunaHistory(NamedTuple):
    """Old studies as tables.

    Args:
        runs: One row a finished trial: ``"task"`` (the study), the parameters, the outcomes
            (:func:`outcome_names`), and of each constraint ``"constraint_"`` and its name. Failed
            trials have no outcome.
        space: The search space that the studies have in common.
        distributions: Optuna's distributions of its parameters.
        directions: Whether each outcome is minimized or maximized.
        curves: The intermediate values of the studies' trials, to be maximized.

    Example:
        >>> import optuna
        >>> study = optuna.create_study(study_name="monday")
        >>> x = optuna.distributions.FloatDistribution(0, 1)
        >>> study.add_trial(
        ...     optuna.create_trial(params={"x": 0.5}, distributions={"x": x}, value=0.2)
        ... )
        >>> history_of([study]).runs
             task    x  value
        0  monday  0.5    0.2
    """

    runs: DataFrame
    space: SearchSpace
    distributions: dict[str, BaseDistribution]
    directions: tuple[StudyDirection, ...]
    curves: tuple[Curve, ...] = ()

    @property
    def parameters(self) -> list[str]:
        """All parameters of the table, also those that the studies do not have in common."""
        others = {TASK, *outcome_names(len(self.directions)), *self.constraints}
        return [name for name in self.runs.columns if name not in others]

    @property
    def constraints(self) -> list[str]:
        """The columns of constraints; they come last."""
        last = self.runs.columns.get_loc(outcome_names(len(self.directions))[-1])
        assert isinstance(last, int)
        return list(self.runs.columns[last + 1 :])


def history_from_optuna(storage: str | BaseStorage, study_names: Sequence[str]) -> OptunaHistory:
    """Reads old studies from one of Optuna's storages.

    A complete trial counts with its values. A pruned trial of a study with one objective counts
    with the final value that a :class:`~botorch_transfer.curves.CurvePrior` of all studies predicts
    from its intermediate values. If no complete trial has intermediate values, it counts with its
    last one, or with the median of the study's complete trials if that is worse: it was stopped
    because it was not promising. A pruned trial without an intermediate value, and a failed one,
    have no outcome. Trials that are not finished are left out.

    The search space has all parameters whose kind, scale and choices are the same in all studies
    that have them. Ranges are the widest. A parameter that some trials of a study lack is
    conditional if the value of another one explains where; if not, it is left out.

    Args:
        storage: The storage, or its URL.
        study_names: The names of the studies. Leave out the study that is to be tuned.

    Returns:
        The table of runs, its search space, and what Optuna says of them. Hand it to
        :class:`TransferSampler`, or the first two parts to :func:`botorch_transfer.suggest`.

    Raises:
        KeyError: If there is no such study.
        ValueError: If there are no studies, they have different directions, no parameter in common,
            or a parameter with the name of another column.

    Example:
        >>> import optuna
        >>> study = optuna.create_study(study_name="monday", storage="sqlite:///old.db")
        >>> study.optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1, log=True), n_trials=3)
        >>> history = history_from_optuna("sqlite:///old.db", ["monday"])
        >>> history.space.parameters[0]
        FloatParameter(name='lr', lower=1e-05, upper=1.0, log=True, active_if=None, step=None)
    """
    if isinstance(study_names, str):
        raise TypeError(f"study_names is the text {study_names!r}: give a list of names.")
    opened = get_storage(storage)
    return history_of([load_study(study_name=name, storage=opened) for name in study_names])


def history_of(studies: Sequence[Study]) -> OptunaHistory:
    """Reads studies as :func:`history_from_optuna` does.

    Args:
        studies: The studies.

    Returns:
        The history.
    """
    if not studies:
        raise ValueError("The history has no studies: give at least one.")
    directions = tuple(studies[0].directions)
    rows: list[dict[str, Any]] = []
    complete: list[bool] = []
    found: dict[str, list[BaseDistribution]] = {}
    parameters: set[str] = set()
    names = outcome_names(len(directions))
    curves: list[Curve] = []
    for study in studies if len(directions) == 1 else ():
        trials, sign = study.get_trials(deepcopy=False, states=FINISHED), sign_of(directions[0])
        curves += [c for c in curves_of(trials, sign, study.study_name) if c is not None]
    prior = CurvePrior.if_complete(curves)
    for study in studies:
        if tuple(study.directions) != directions:
            raise ValueError(
                f"The study {study.study_name!r} has other directions than "
                f"{studies[0].study_name!r}: leave one of them out."
            )
        name = study.study_name
        trials = study.get_trials(deepcopy=False, states=FINISHED)
        known, _ = outcomes_of(trials, directions, prior)
        for trial, outcomes in zip(trials, known, strict=True):
            for key, distribution in trial.distributions.items():
                seen = found.setdefault(key, [])
                if distribution not in seen:
                    seen.append(distribution)
            limits = {constraint_name(key): value for key, value in trial.constraints.items()}
            cells = {key: label(value) for key, value in trial.params.items()}
            parameters |= cells.keys()
            values = dict(zip(names, outcomes.tolist(), strict=True))
            rows.append({TASK: name, **limits, **values, **cells})
            if clash := cells.keys() & {TASK, *limits, *values}:
                raise ValueError(
                    f"The study {name!r} has a parameter {min(clash)!r}, which is the name of "
                    "another column: make a table of your own, with another name."
                )
            complete.append(trial.state == TrialState.COMPLETE)
    order = [key for key in found if key in parameters]
    limits_found = sorted({key for row in rows for key in row} - {TASK, *order, *names})
    frame = DataFrame(rows, columns=[TASK, *order, *names, *limits_found])
    space, distributions = _space(frame[np.array(complete, dtype=np.bool_)], found)
    return OptunaHistory(frame, space, distributions, directions, tuple(curves))


def read_history(history: Any) -> Any:
    """Reads studies from storages; leaves tables and priors as they are.

    Args:
        history: As :class:`TransferSampler` takes it.

    Returns:
        The history of studies, or the argument.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(history, OptunaHistory | DataFrame | TransferPrior | Mapping):
        return history
    if isinstance(history, Study):
        return history_of([history])
    if isinstance(history, tuple) and history and isinstance(history[0], str | BaseStorage):
        return history_from_optuna(*history)
    if isinstance(history, Sequence) and all(isinstance(part, Study) for part in history):
        return history_of(history)
    raise TypeError(
        f"history is a {type(history).__name__}: give studies, a storage with the names of "
        "studies, a table or a prior."
    )


def sign_of(direction: StudyDirection) -> float:
    """The factor that makes an objective one to be maximized."""
    return -1.0 if direction == StudyDirection.MINIMIZE else 1.0


def curves_of(
    trials: Sequence[FrozenTrial], sign: float, task: str = "", log: bool = False
) -> list[Curve | None]:
    """The learning curves of trials of one objective.

    Args:
        trials: The trials.
        sign: The factor that makes the objective one to be maximized.
        task: The name of the study.
        log: Whether to take logarithms.

    Returns:
        A curve for each trial, ``None`` for those without any value. That of a complete trial ends
        with its value.
    """
    curves: list[Curve | None] = []
    for trial in trials:
        steps = sorted(trial.intermediate_values)
        values = np.array([trial.intermediate_values[step] for step in steps], dtype=np.float64)
        is_complete = trial.state == TrialState.COMPLETE
        if is_complete and not steps:
            steps, values = [0], np.empty(1)
        if not steps:
            curves.append(None)
            continue
        if is_complete and trial.value is not None:
            values[-1] = trial.value
        if log:
            values = np.log(np.where(values > 0, values, np.nan))
        curves.append(
            Curve(np.array(steps, dtype=np.float64), sign * values, not is_complete, task)
        )
    return curves


def outcome_names(number: int) -> list[str]:
    """Names of the outcomes' columns, as in Optuna's own tables."""
    return ["value"] if number == 1 else [f"values_{i}" for i in range(number)]


def constraint_name(key: str) -> str:
    """The column of a constraint."""
    return f"constraint_{key}"


def outcomes_of(
    trials: Sequence[FrozenTrial],
    directions: Sequence[StudyDirection],
    prior: CurvePrior | None = None,
    log: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values with which the trials of one study count.

    See :func:`history_from_optuna` for the rule.

    Args:
        trials: The trials.
        directions: The directions of the study.
        prior: What learning curves tell; by default those of the study's own complete trials.
        log: Whether the prior and the variances are of the value's logarithm.

    Returns:
        An ``n x m`` array, NaN for trials without an outcome; and an ``n`` array of the variances
        of predicted outcomes.
    """
    outcomes, variances = np.full((len(trials), len(directions)), np.nan), np.zeros(len(trials))
    for row, trial in zip(outcomes, trials, strict=True):
        if trial.state == TrialState.COMPLETE:
            row[:] = trial.values
    pruned = [i for i, trial in enumerate(trials) if trial.state == TrialState.PRUNED]
    if len(directions) > 1 or not pruned:
        return outcomes, variances
    sign, known = sign_of(directions[0]), outcomes[np.isfinite(outcomes).all(axis=1)]
    found = curves_of(trials, sign, log=log)
    places = [i for i, curve in enumerate(found) if curve is not None]
    curves = [curve for curve in found if curve is not None]
    if (prior := prior or CurvePrior.if_complete(curves)) is not None:
        forecast = prior.forecast(curves)
        for i, mean, variance in zip(places, forecast.mean, forecast.variance, strict=True):
            if i in pruned:
                outcomes[i], variances[i] = np.exp(sign * mean) if log else sign * mean, variance
    elif len(known) > 0:
        worse = max if sign < 0 else min
        for i in pruned:
            step = trials[i].last_step
            last = np.nan if step is None else trials[i].intermediate_values[step]
            if np.isfinite(last):
                outcomes[i] = worse(last, float(np.median(known)))
    return outcomes, np.nan_to_num(variances)


def _space(
    frame: DataFrame, found: Mapping[str, list[BaseDistribution]]
) -> tuple[SearchSpace, dict[str, BaseDistribution]]:
    """The parameters that the complete trials of old studies have in common."""
    parameters: dict[str, Parameter] = {}
    distributions: dict[str, BaseDistribution] = {}
    # Parents of conditional parameters come first.
    complete = {name: frame[name].notna().groupby(frame[TASK]).mean() for name in found}
    for name in sorted(found, key=lambda name: bool(complete[name].between(0, 1, "neither").any())):
        distribution = merged(found[name])
        if distribution is None:
            logger.info("Parameter %r differs in kind, scale or choices: left out", name)
            continue
        recorded = complete[name].index[complete[name] > 0]
        if distribution.single() or recorded.empty:
            continue
        condition = None
        if (complete[name][recorded] < 1).any():
            rows = frame[frame[TASK].isin(recorded)]
            condition = find_condition(rows, name, list(parameters.values()))
            if condition is None:
                logger.info("Parameter %r is not in all trials, and nothing says why", name)
                continue
        parameters[name] = parameter_of(name, distribution, condition)
        distributions[name] = distribution
    if not parameters:
        raise ValueError(
            "The old studies have no parameter in common: make a table of your own, and give its "
            "search space."
        )
    return SearchSpace(list(parameters.values())), distributions


# ----------------------------------------------------------------------------------- distributions


def parameter_of(
    name: str, distribution: BaseDistribution, active_if: ActiveIf | None = None
) -> Parameter:
    """Describes a distribution as a parameter.

    Numbers with a step become ordinal values, which are equally spaced. Of more than
    ``MAX_LISTED_VALUES`` steps the encoding is continuous, and :func:`value_of` rounds.

    Args:
        name: The name of the parameter.
        distribution: Optuna's distribution, not of a single value.
        active_if: When the parameter is active.

    Returns:
        The parameter.

    Example:
        >>> parameter_of("units", IntDistribution(32, 128, step=32)).values
        (32, 64, 96, 128)
    """
    if isinstance(distribution, CategoricalDistribution):
        return CategoricalParameter(name, [label(c) for c in distribution.choices], active_if)
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise TypeError(
            f"Parameter {name!r} has a {type(distribution).__name__}: only Optuna's float, int and "
            "categorical distributions can be used."
        )
    low, high, log, step = distribution.low, distribution.high, distribution.log, distribution.step
    whole = isinstance(distribution, IntDistribution)
    if step is not None and not (whole and step == 1):
        count = round((high - low) / step) + 1
        if count <= MAX_LISTED_VALUES:
            values = [value_of(distribution, low + rank * step) for rank in range(count)]
            return OrdinalParameter(name, values, active_if=active_if)
    if whole:
        return IntegerParameter(name, int(low), int(high), log, active_if)
    return FloatParameter(name, low, high, log, active_if)


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Describes a parameter as a distribution, as the objective function has to suggest it.

    Args:
        parameter: The parameter.

    Returns:
        Optuna's distribution. Ordered values that are not equally spaced numbers are choices.

    Raises:
        TypeError: If it is a composition, which Optuna does not know.

    Example:
        >>> from botorch_transfer import OrdinalParameter
        >>> distribution_of(OrdinalParameter("units", (32, 64, 96))).step
        32
    """
    if isinstance(parameter, FloatParameter):
        log = parameter.log is True
        step = None if log else parameter.step
        return FloatDistribution(parameter.lower, parameter.upper, log=log, step=step)
    if isinstance(parameter, IntegerParameter):
        return IntDistribution(int(parameter.lower), int(parameter.upper), log=parameter.log)
    if isinstance(parameter, OrdinalParameter) and not parameter.log and parameter.size > 1:
        values = parameter.values
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            gaps = np.diff(np.array(values, dtype=np.float64))
            if np.allclose(gaps, gaps[0], rtol=1e-9):
                if all(isinstance(value, int) for value in values):
                    return IntDistribution(values[0], values[-1], step=values[1] - values[0])
                return FloatDistribution(values[0], values[-1], step=float(gaps[0]))
    if isinstance(parameter, OrdinalParameter | CategoricalParameter):
        return CategoricalDistribution(tuple(parameter.values))
    raise TypeError(
        f"Parameter {parameter.name!r} is a {type(parameter).__name__}, which Optuna does not "
        "know: leave it out of the search space."
    )


def merged(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """Finds the distribution that contains all of one parameter's.

    Args:
        distributions: The distributions, at least one.

    Returns:
        Numbers from the lowest to the highest bound, with the step that all have; ``None`` if kind,
        scale or choices differ.

    Example:
        >>> merged([IntDistribution(1, 5), IntDistribution(3, 9)])
        IntDistribution(high=9, log=False, low=1, step=1)
    """
    first = distributions[0]
    if all(other == first for other in distributions):
        return first
    if not isinstance(first, FloatDistribution | IntDistribution):
        return None
    numeric = [d for d in distributions if isinstance(d, type(first)) and d.log == first.log]
    if len(numeric) < len(distributions):
        return None
    low, high = min(d.low for d in numeric), max(d.high for d in numeric)
    step = first.step
    if step is not None:
        offsets = [(d.low - low) / step for d in numeric]
        aligned = all(abs(offset - round(offset)) < 1e-8 for offset in offsets)
        if not aligned or any(d.step != step for d in numeric):
            step = None
    if isinstance(first, IntDistribution):
        return IntDistribution(int(low), int(high), log=first.log, step=int(step or 1))
    return FloatDistribution(low, high, log=first.log, step=step)


def label(choice: Any) -> Any:
    """What stands for a choice in a table: itself, or text if a cell cannot hold it, as None."""
    plain = isinstance(choice, str | bool | int | float) and choice == choice  # not NaN
    return choice if plain else str(choice)


def value_of(distribution: BaseDistribution, cell: Any) -> Any:
    """Turns the cell of a table into a value as Optuna has it, on the distribution's grid.

    Args:
        distribution: The distribution.
        cell: A number near the range, or the label of a choice.

    Returns:
        A value of the distribution, of Python's own type.
    """
    if isinstance(distribution, CategoricalDistribution):
        return next(choice for choice in distribution.choices if label(choice) == cell)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    value = float(cell)
    if step is not None:
        value = low + round((value - low) / step) * step
    number = int if isinstance(distribution, IntDistribution) else float
    return number(min(max(value, low), high))


def has_value(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value is one of the distribution's."""
    if isinstance(distribution, CategoricalDistribution):
        return label(value) in [label(choice) for choice in distribution.choices]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not distribution.low <= value <= distribution.high:
        return False
    return abs(value_of(distribution, value) - value) <= 1e-8 * max(1.0, abs(value))
