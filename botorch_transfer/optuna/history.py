"""Conversion of Optuna studies to a table of runs with a search space.

:func:`rows_of` defines the outcome and the state of each trial, in old studies and in the current
study. :func:`parameter_of` converts distributions, including distributions with a step.
:func:`label` converts choices that a table cannot hold to text.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage, get_storage
from optuna.study import Study, StudyDirection, get_all_study_names, load_study
from optuna.trial import FrozenTrial, TrialState, create_trial
from pandas import DataFrame, to_numeric

from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.prior import Curve
from botorch_transfer.curves.tables import predicted_ends
from botorch_transfer.data.columns import likely_column, renamed
from botorch_transfer.data.measurements import variance_column
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

#: Columns of the task and of the trial's state. Parameters hardly ever have the name of the state.
TASK, STATUS = "task", "optuna: state"

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class OptunaHistory(NamedTuple):
    """Old studies as a table of runs with a search space.

    Use it as ``history=`` of :class:`TransferSampler`, or pass ``runs`` and ``space`` to
    :func:`botorch_transfer.suggest`.

    Args:
        runs: A table with one row per finished trial. Its columns are ``"task"`` (the study), the
            parameters, the outcomes, and for each constraint ``"constraint_<name>"``.
            :func:`outcome_signs` names the outcomes. Failed trials have no outcome.
        space: The search space of the studies; ``None`` if no parameter is usable. A parameter is
            usable if its studies have it in all complete trials, or if it is conditional.
        distributions: Optuna's distributions of the parameters of ``space``.
        directions: The direction of each objective, in the order of the outcomes.
        curves: The learning curves of the trials, with signs for maximization.
        parameters: The names of all parameters in ``runs``, including parameters that some studies
            lack.
        constraints: The names of the columns of constraints.

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
    space: SearchSpace | None
    distributions: dict[str, BaseDistribution]
    directions: tuple[StudyDirection, ...]
    curves: Sequence[Curve] = ()
    parameters: Sequence[str] = ()
    constraints: Sequence[str] = ()

    def curve_prior(self, without: str, log: bool = False) -> CurvePrior | None:
        """Fits a prior to the learning curves of all studies except one.

        Args:
            without: The name of the study to leave out.
            log: Whether to fit the prior to the logarithms of the outcomes.

        Returns:
            The prior; ``None`` if no curve is complete.
        """
        curves = [curve for curve in self.curves if curve.task != without]
        return CurvePrior.of_curves([c.in_logarithms() for c in curves] if log else curves)


def history_from_optuna(
    storage: str | BaseStorage, study_names: Sequence[str], rename: Mapping[str, str] | None = None
) -> OptunaHistory:
    """Reads old studies from an Optuna storage.

    The outcomes of a complete trial are its values. The outcome of a pruned trial is a prediction
    of its final value, for studies with one objective. A
    :class:`~botorch_transfer.curves.CurvePrior` of all studies predicts the final value from the
    trial's intermediate values. Pruned trials are left out if no complete trial has intermediate
    values. Failed trials, and pruned trials without an intermediate value, have no outcome.
    Unfinished trials are left out.

    All outcomes have the direction of the first study. The values of a study with the opposite
    direction change their sign.

    The search space contains the parameters of all studies. A range spans the ranges of all
    studies, and a choice has the values of all studies. The newest distribution determines whether
    the scale is logarithmic. A parameter that is a number in some studies and a choice in other
    studies is left out. If some complete trials of a study lack a parameter, the parameter becomes
    conditional: its parent is a parameter whose values determine which trials lack it. Without such
    a parent, the parameter is left out.

    Args:
        storage: The storage, or its URL.
        study_names: The names of the old studies, without the name of the current study.
        rename: New names of parameters by old name.

    Returns:
        The old studies as a table with a search space. Pass this history to
        :class:`TransferSampler`, or pass ``runs`` and ``space`` to
        :func:`botorch_transfer.suggest`.

    Raises:
        ValueError: If the storage or a study does not exist, or ``study_names`` is empty. Also if
            the studies have different numbers of objectives, no parameter is usable, or a
            parameter has the name of another column.

    Example:
        >>> import optuna
        >>> study = optuna.create_study(study_name="monday", storage="sqlite:///old.db")
        >>> study.optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1, log=True), n_trials=3)
        >>> history = history_from_optuna("sqlite:///old.db", ["monday"])
        >>> history.space.parameters[0]
        FloatParameter(name='lr', lower=1e-05, upper=1.0, log=True, active_if=None, step=None)
    """
    history = history_of(load(storage, study_names), rename)
    if history.space is None:
        raise ValueError(
            "The old studies have no usable parameter, because no parameter is in all complete "
            "trials of a study: make a table of the runs yourself, and give its search space."
        )
    return history


def load(storage: str | BaseStorage, study_names: Sequence[str]) -> list[Study]:
    """Loads studies, and does not create a database that does not exist.

    Args:
        storage: The storage, or its URL.
        study_names: The names of the studies.

    Returns:
        The studies.

    Raises:
        TypeError: If ``study_names`` is not a list.
        ValueError: If the storage or a study does not exist.
    """
    if isinstance(study_names, str) or not isinstance(study_names, Iterable):
        raise TypeError(f"study_names is {study_names!r}: give a list of names.")
    if isinstance(storage, str):
        kind, _, path = storage.partition(":///")
        if kind.startswith("sqlite") and path and not Path(path.partition("?")[0]).exists():
            raise ValueError(f"There is no database {path}: correct the URL {storage!r}.")
    try:
        opened = get_storage(storage)
        known = get_all_study_names(opened)
    except Exception as error:  # each kind of storage raises its own errors
        reason = " ".join(str(error).split())
        raise ValueError(
            f"Optuna cannot open the storage {storage!r} ({reason}): give a URL, such as "
            "'sqlite:///old.db' for the file old.db, or a storage object."
        ) from error
    if unknown := [name for name in study_names if name not in known]:
        raise ValueError(
            f"The storage has no study {unknown[0]!r}: choose from {', '.join(map(repr, known))}."
        )
    return [load_study(study_name=name, storage=opened) for name in study_names]


def history_of(studies: Sequence[Any], rename: Mapping[str, str] | None = None) -> OptunaHistory:
    """Converts loaded studies to a table; see :func:`history_from_optuna` for the rules.

    Args:
        studies: Optuna studies and Ax experiments.
        rename: New names of parameters by old name.

    Returns:
        The history.
    """
    if not studies:
        raise ValueError("The history has no studies: give at least one.")
    rename, old_studies = dict(rename or {}), [_finished(study) for study in studies]
    for old, new in rename.items():
        if not isinstance(new, str):
            raise ValueError(f"rename= gives {old!r} the name {new!r}: give one name as text.")
    directions = tuple(old_studies[0].directions)
    names = list(outcome_signs(directions))
    curves = [
        curve
        for study in (old_studies if len(directions) == 1 else ())
        for curve in curves_of(study.trials, sign_of(study.directions[0]), study.name)
    ]
    prior = CurvePrior.of_curves(curves)
    rows, found = list[dict[str, Any]](), dict[str, list[BaseDistribution]]()
    for study in old_studies:
        signs = direction_signs(study.name, study.directions, directions)
        read = rows_of(study.trials, study.directions, names, prior)
        for trial, row in zip(study.trials, read, strict=True):
            if row[STATUS] == TrialState.PRUNED.name and np.isnan(row[names[0]]):
                continue
            row |= {name: sign * row[name] for name, sign in signs.items()}
            row[TASK] = study.name
            for key, value in trial.params.items():
                if (name := rename.get(key, key)) in row:
                    raise ValueError(
                        f"The study {study.name!r} has a parameter {name!r}, and another column "
                        "has this name: give the parameter another name by rename=."
                    )
                row[name] = label(value)
                if trial.distributions[key] not in (known := found.setdefault(name, [])):
                    known.append(trial.distributions[key])
            rows.append(row)
    known_names = {name for study in old_studies for t in study.trials for name in t.params}
    if unknown := rename.keys() - known_names:
        raise ValueError(
            f"rename= has the parameter {min(unknown)!r}, which no old study has: correct the name."
        )
    others = {TASK, STATUS, variance_column(names[0]), *found, *names}
    limits = sorted({key for row in rows for key in row} - others)
    frame = DataFrame(rows, columns=[TASK, *found, *names, *limits])
    recorded = frame[[TASK, *found]].groupby(TASK, sort=False).count() > 0
    for name in found:
        with_it = recorded[recorded[name]].any()
        for task, own in recorded[~recorded[name]].iterrows():
            spare = [other for other in found if own[other] and not with_it[other]]
            warn_of_rename(f"The study {task!r}", name, spare)
    complete = np.array([row[STATUS] == TrialState.COMPLETE.name for row in rows], dtype=np.bool_)
    space, distributions = _space(frame[complete], found)
    return OptunaHistory(frame, space, distributions, directions, curves, list(found), limits)


def warn_of_rename(where: str, name: str, spare: Collection[Any]) -> None:
    """Warns if a history lacks a parameter, and one of the spare columns has a similar name."""
    if likely := likely_column(name, spare):
        logger.warning(
            f"{where} lacks the parameter {name!r} and has the parameter {likely!r}: if both are "
            f"the same parameter, pass rename={{{likely!r}: {name!r}}}"
        )


def direction_signs(
    name: str, old: Sequence[StudyDirection], new: Sequence[StudyDirection]
) -> dict[str, float]:
    """Returns the factors that convert old values to the directions of a new study.

    Args:
        name: The name of the old study, for error messages.
        old: The directions of the old study.
        new: The directions of the new study.

    Returns:
        For each column of outcomes: 1 if both studies have the same direction, else -1.

    Raises:
        ValueError: If the studies have different numbers of objectives.
    """
    if len(old) != len(new):
        raise ValueError(
            f"The study {name!r} has {len(old)} objectives, and another study has {len(new)}: "
            "leave one of the studies out."
        )
    signs = outcome_signs(new)
    return {name: sign * signs[name] for name, sign in outcome_signs(old).items()}


class _Finished(NamedTuple):
    """Name, directions and finished trials of an Optuna study or of an Ax experiment."""

    name: str
    directions: Sequence[StudyDirection]
    trials: Sequence[FrozenTrial]


#: Optuna's trial state for each name of Ax's trial statuses; trials without a state are left out.
AX_STATES = {
    "COMPLETED": TrialState.COMPLETE,
    "EARLY_STOPPED": TrialState.PRUNED,
    "FAILED": TrialState.FAIL,
}


def _is_study(part: Any) -> bool:
    """Returns whether an object is an Optuna study, or an Ax client or experiment."""
    kind = type(part)
    is_of_ax = kind.__module__.startswith("ax.") and kind.__name__ in ("Client", "Experiment")
    return is_of_ax or isinstance(part, Study)


def _is_prior(part: Any) -> bool:
    """Returns whether an object is a prior, or a mapping to priors."""
    if isinstance(part, Mapping):
        return bool(part) and all(map(_is_prior, part.values()))
    return isinstance(part, TransferPrior)


def _finished(study: Any) -> _Finished:
    """Reads the finished trials of an Optuna study or of an Ax experiment."""
    if not isinstance(study, Study):
        return _of_ax(study)
    try:
        trials = study.get_trials(deepcopy=False, states=FINISHED)
        return _Finished(study.study_name, study.directions, trials)
    except KeyError as error:
        raise ValueError("An old study was deleted from its storage: leave it out.") from error


def _of_ax(client: Any) -> _Finished:
    """Converts the arms of an Ax experiment's finished trials to Optuna's trials."""
    from botorch_transfer.ax.experiments import curves_of, directions, experiment_of
    from botorch_transfer.ax.history import own_space

    experiment = experiment_of(client)
    if not (goals := directions(experiment.optimization_config)):
        raise ValueError(f"The old experiment {experiment.name!r} has no objective: leave it out.")
    space = experiment.search_space
    parameters = [p for p in own_space(space).parameters if p.name in space.tunable_parameters]
    known = {parameter.name: distribution_of(parameter) for parameter in parameters}
    curves = curves_of(experiment, next(iter(goals)), 1.0)
    data = experiment.lookup_data().df.set_index(["trial_index", "arm_name", "metric_signature"])
    means = data["mean"].to_dict()
    trials = []
    for index, trial in experiment.trials.items():
        if (state := AX_STATES.get(trial.status.name)) is None:
            continue
        for arm in trial.arms:
            params = {name: value for name, value in arm.parameters.items() if name in known}
            values = [float(means.get((index, arm.name, goal), np.nan)) for goal in goals]
            is_complete, curve = state == TrialState.COMPLETE, curves.get(index)
            empty = is_complete and np.isnan(values).all()
            if empty or not all(has_value(known[name], value) for name, value in params.items()):
                continue
            points = {} if curve is None else dict(zip(curve.steps, curve.values, strict=True))
            found = create_trial(
                state=state,
                params=params,
                distributions={name: known[name] for name in params},
                values=values if is_complete else None,
                intermediate_values=points,
            )
            trials.append(found)
    sides = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
    return _Finished(experiment.name, [sides[sign > 0] for sign in goals.values()], trials)


def read_studies(history: Any, rename: Mapping[str, str] | None = None) -> Any:
    """Reads studies and Ax experiments; returns a prior or an ``OptunaHistory`` unchanged.

    Args:
        history: The history, in any form that :class:`TransferSampler` takes.
        rename: New names of parameters, or of columns of a table, by old name.

    Returns:
        The old studies as an ``OptunaHistory``, the table with renamed columns, or the unchanged
        argument. If no study has a finished trial, logs a warning and returns an empty table.

    Raises:
        TypeError: If the history has none of the forms that :class:`TransferSampler` takes.
        ValueError: If a study was deleted. Also if ``rename`` is given, and the history is a prior
            or an ``OptunaHistory``.
    """
    if isinstance(history, OptunaHistory) or _is_prior(history):
        if rename:
            raise ValueError(
                "rename= only applies to studies and tables: rename the parameters in advance."
            )
        return history
    if isinstance(history, tuple) and len(history) == 2 and not any(map(_is_study, history)):
        history = load(*history)
    studies = history if isinstance(history, list | tuple) else [history]
    if all(map(_is_study, studies)):
        if studies and len((read := history_of(studies, rename)).runs):
            return read
        history = DataFrame(columns=[TASK])
    if isinstance(history, DataFrame):
        if history.empty:
            logger.warning("The history has no runs: the study starts without a history")
        return history if history.empty else renamed(history, rename or {})
    raise TypeError(
        f"history is a {type(history).__name__}: give a list of studies or Ax experiments, a "
        "storage and names as (url, names), a table, or a prior."
    )


def sign_of(direction: StudyDirection) -> float:
    """Returns 1 for an objective to maximize, and -1 for an objective to minimize."""
    return -1.0 if direction == StudyDirection.MINIMIZE else 1.0


def curves_of(trials: Sequence[FrozenTrial], sign: float, task: str = "") -> list[Curve]:
    """Returns the learning curves of the trials of a study with one objective.

    Args:
        trials: The trials.
        sign: 1 to maximize the objective, -1 to minimize it. Values are multiplied by this sign.
        task: The name of the study.

    Returns:
        The curves of trials with at least one value; ``row`` is the index of the trial in
        ``trials``. The curve of a complete trial ends with the value of the trial.
    """
    curves = []
    for row, trial in enumerate(trials):
        values, is_complete = dict(trial.intermediate_values), trial.state == TrialState.COMPLETE
        if is_complete:
            values[max(values, default=0)] = trial.values[0]
        if values:
            points = np.array(sorted(values.items()), dtype=np.float64)
            curves.append(Curve(points[:, 0], sign * points[:, 1], not is_complete, task, row))
    return curves


def outcome_signs(directions: Sequence[StudyDirection]) -> dict[str, float]:
    """Returns the sign of each outcome, by column name as in ``Study.trials_dataframe``."""
    names = ["value"] if len(directions) == 1 else [f"values_{i}" for i in range(len(directions))]
    return dict(zip(names, map(sign_of, directions), strict=True))


def rows_of(
    trials: Sequence[FrozenTrial],
    directions: Sequence[StudyDirection],
    names: Sequence[str],
    prior: CurvePrior | None = None,
    log: bool = False,
    status: str = STATUS,
) -> list[dict[str, Any]]:
    """Tabulates the trials of one study; see :func:`history_from_optuna` for the rules.

    Args:
        trials: The trials.
        directions: The directions of the study.
        names: The names of the columns of the objectives.
        prior: The prior of learning curves; by default it is fitted to the study's complete trials.
        log: Whether the prior and the variances refer to the logarithm of the value.
        status: The name of the column of the state.

    Returns:
        One row per trial with its constraints, its outcomes (NaN if unknown), the variance of the
        outcome (zero unless the outcome is predicted) and its state. The state of a pruned trial
        without an intermediate value is failed.
    """
    rows, variance = list[dict[str, Any]](), variance_column(names[0])
    for trial in trials:
        is_pruned = trial.state == TrialState.PRUNED
        state = TrialState.FAIL if is_pruned and not trial.intermediate_values else trial.state
        # Ignore a pruned trial's value, because Optuna sets it to the last intermediate value.
        values = (None if is_pruned else trial.values) or [np.nan] * len(names)
        row = {f"constraint_{key}": value for key, value in trial.constraints.items()}
        row |= dict(zip(names, values, strict=True))
        rows.append({**row, variance: 0.0, status: state.name})
    if len(names) == 1 and any(trial.state == TrialState.PRUNED for trial in trials):
        curves = curves_of(trials, sign := sign_of(directions[0]))
        curves = [curve.in_logarithms() for curve in curves] if log else curves
        found = predicted_ends(prior or CurvePrior.of_curves(curves), curves, sign, log)
        for curve, end, uncertain in zip(curves, *found, strict=True):
            if trials[curve.row].state == TrialState.PRUNED:
                rows[curve.row] |= {names[0]: float(end), variance: float(np.nan_to_num(uncertain))}
    return rows


def _space(
    frame: DataFrame, found: Mapping[str, list[BaseDistribution]]
) -> tuple[SearchSpace | None, dict[str, BaseDistribution]]:
    """Returns the search space of the usable parameters, and the distributions by parameter.

    Args:
        frame: The table of complete trials.
        found: All distributions of each parameter, from the oldest to the newest study.

    Returns:
        The search space, or ``None`` if no parameter is usable; and the merged distributions.
    """
    parameters: dict[str, Parameter] = {}
    distributions: dict[str, BaseDistribution] = {}
    # Sort parameters without missing values first, so that conditional parameters find a parent.
    complete = {name: frame[name].notna().groupby(frame[TASK]).mean() for name in found}
    for name in sorted(found, key=lambda name: bool(complete[name].between(0, 1, "neither").any())):
        distribution = merged(found[name])
        if distribution is None:
            logger.warning(
                f"Left out the parameter {name!r}: it is a number in some old studies and a choice "
                "in other old studies"
            )
            continue
        recorded = complete[name].index[complete[name] > 0]
        if distribution.single() or recorded.empty:
            continue
        condition = None
        if (complete[name][recorded] < 1).any():
            rows = frame[frame[TASK].isin(recorded)]
            condition = find_condition(rows, name, list(parameters.values()))
            if condition is None:
                logger.info(
                    f"Left out the parameter {name!r}: some trials lack it, and no other parameter "
                    "determines which trials"
                )
                continue
        parameters[name] = parameter_of(name, distribution, condition)
        distributions[name] = distribution
    space = SearchSpace(list(parameters.values())) if parameters else None
    return space, distributions


# ----------------------------------------------------------------------------------- distributions


def parameter_of(
    name: str, distribution: BaseDistribution, active_if: ActiveIf | None = None
) -> Parameter:
    """Converts an Optuna distribution to a parameter.

    Numbers with a step become ordinal values. If there are more than ``MAX_LISTED_VALUES`` values,
    the parameter is a range without a step, and :func:`value_of` rounds numbers to the steps.

    Args:
        name: The name of the parameter.
        distribution: Optuna's distribution, with more than one value.
        active_if: The condition under which the parameter is active.

    Returns:
        The parameter.

    Example:
        >>> parameter_of("units", IntDistribution(32, 128, step=32)).values
        (32, 64, 96, 128)
    """
    if isinstance(distribution, CategoricalDistribution):
        return CategoricalParameter(name, [label(c) for c in distribution.choices], active_if)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
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
    """Converts a parameter to the Optuna distribution that the objective function has to use.

    Args:
        parameter: The parameter.

    Returns:
        Optuna's distribution. An ordinal parameter whose values are not equally spaced numbers
        becomes a ``CategoricalDistribution``.

    Raises:
        TypeError: If no Optuna distribution corresponds to the class of the parameter.

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
    if isinstance(parameter, OrdinalParameter) and parameter.is_numeric and not parameter.log:
        values = parameter.values
        gaps = np.diff(np.array(values, dtype=np.float64))
        if len(gaps) and np.allclose(gaps, gaps[0], rtol=1e-9):
            whole = all(isinstance(value, int) for value in values)
            kind = IntDistribution if whole else FloatDistribution
            return kind(values[0], values[-1], step=values[1] - values[0])
    if isinstance(parameter, OrdinalParameter | CategoricalParameter):
        return CategoricalDistribution(tuple(parameter.values))
    raise TypeError(
        f"Parameter {parameter.name!r} is a {type(parameter).__name__}, which Optuna does not "
        "support: leave it out of the search space."
    )


def merged(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """Merges all distributions of a parameter into one distribution.

    Args:
        distributions: At least one distribution; the newest distribution is last.

    Returns:
        For numbers, the range from the lowest to the highest bound. The newest distribution sets
        the scale. A step that all distributions share is kept. A mix of integers and floats becomes
        floats. For choices, the choices of all distributions, in order of first appearance.
        ``None`` if some distributions are numbers and other distributions are choices.

    Example:
        >>> merged([IntDistribution(1, 5), IntDistribution(3, 9)])
        IntDistribution(high=9, log=False, low=1, step=1)
    """
    if all(isinstance(d, CategoricalDistribution) for d in distributions):
        choices = {label(c): c for d in distributions for c in d.choices}  # type: ignore[attr-defined]
        return CategoricalDistribution(tuple(choices.values()))
    numeric = [d for d in distributions if isinstance(d, FloatDistribution | IntDistribution)]
    if len(numeric) < len(distributions):
        return None
    low, high = min(d.low for d in numeric), max(d.high for d in numeric)
    log, step = numeric[-1].log and low > 0, numeric[0].step
    if step is not None:
        ranks = np.array([(d.low - low) / step for d in numeric])
        is_aligned = np.allclose(ranks, np.rint(ranks), rtol=0.0)
        is_common = is_aligned and not log and all(d.step == step for d in numeric)
        step = step if is_common else None
    if all(isinstance(d, IntDistribution) for d in numeric):
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return FloatDistribution(low, high, log=log, step=step)


def label(choice: Any) -> Any:
    """Returns a choice that a cell of a table can hold, else its text, such as ``"None"``."""
    plain = isinstance(choice, str | bool | int | float) and choice == choice  # not NaN
    return choice if plain else str(choice)


def value_of(distribution: BaseDistribution, cell: Any) -> Any:
    """Converts a cell of a table to a value of a distribution.

    Args:
        distribution: The distribution.
        cell: A number, or the label of a choice.

    Returns:
        The choice; or the number, clipped to the range and rounded to the distribution's steps.
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


def converted(distribution: BaseDistribution, cell: Any) -> Any:
    """Converts a cell of an old table to a cell for the current distribution.

    Args:
        distribution: The current distribution.
        cell: A number or the label of a choice, from an old distribution.

    Returns:
        The label of a choice, or a number that may be out of range. The choice ``"3"`` equals the
        number 3. ``None`` if the distribution lacks the choice, if the cell is not a number, or if
        it is not positive and the scale is logarithmic.
    """
    number = _number_in(cell)
    if isinstance(distribution, CategoricalDistribution):
        labels = map(label, distribution.choices)
        return next((c for c in labels if str(c) == str(cell) or _number_in(c) == number), None)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    has_place = number > 0 if distribution.log else number == number
    return number if has_place else None


def _number_in(cell: Any) -> float:
    """Converts a cell to a number; returns NaN for a boolean, and for text that is not a number."""
    return float("nan" if isinstance(cell, bool) else to_numeric(cell, errors="coerce"))


def has_value(distribution: BaseDistribution, value: Any) -> bool:
    """Returns whether a distribution contains a value."""
    if isinstance(distribution, CategoricalDistribution):
        return label(value) in [label(choice) for choice in distribution.choices]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isclose(value_of(distribution, value), value, abs_tol=1e-8)
