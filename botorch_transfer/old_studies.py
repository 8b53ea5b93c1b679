"""Reads Optuna studies and Ax experiments as a table of runs with a search space.

:func:`rows_of` computes the outcomes and the state of each trial, in old studies and in the current
study. :func:`parameter_of` converts Optuna's distributions to parameters of this package.
:func:`label` converts a categorical choice that a table cannot hold, such as ``None``, to text.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

try:
    import optuna  # noqa: F401
except ImportError as error:
    raise ImportError(
        "botorch_transfer.optuna needs Optuna: install it by pip install "
        "'botorch_transfer[optuna]'."
    ) from error

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

from botorch_transfer.curves import Curve, CurvePrior, predicted_ends
from botorch_transfer.data.columns import renamed
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
from botorch_transfer.search_space.cells import likely_column
from botorch_transfer.search_space.guess import find_condition
from botorch_transfer.search_space.parameters import ActiveIf

logger = logging.getLogger(__name__)

#: Columns of the study's name and of the trial's state. The name of the second column is unusual,
#: so that no parameter has this name.
TASK, STATUS = "task", "optuna: state"

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class OptunaHistory(NamedTuple):
    """Table of the trials of old Optuna studies, with their search space.

    Use it as ``history=`` of :class:`TransferSampler`, or pass ``runs`` and ``space`` to
    :func:`botorch_transfer.suggest`.

    Args:
        runs: A table with one row per finished trial. Its columns are ``"task"`` (the study), the
            parameters, the outcomes, and for each constraint ``"constraint_<name>"``. The outcome
            is ``"value"``, or ``"values_0"``, ``"values_1"`` and so on for several objectives. The
            outcomes of a failed trial are NaN.
        space: The search space of the usable parameters; ``None`` if no parameter is usable. If
            only some complete trials of a study have a parameter, this parameter is usable only if
            other parameters determine which trials have it.
        distributions: Optuna's distribution of each parameter in ``space``, by name.
        directions: The direction of each objective, in the order of the outcome columns.
        curves: The learning curves of the trials. If the objective is minimized, values are
            negated. Empty for several objectives.
        parameters: The names of all parameters in ``runs``, including parameters that are not in
            ``space``.
        constraints: The names of the constraint columns in ``runs``.

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

    def compare_directions(self, directions: Sequence[StudyDirection]) -> None:
        """Logs a warning if an objective has the opposite direction in a new study."""
        pairs = zip(self.directions, directions, strict=False)
        if any(sign_of(old) != sign_of(new) for old, new in pairs):
            text = "The old studies have the opposite direction, so old values are negated: if both"
            logger.warning(text + " directions should be the same, correct direction=")

    def curve_prior(self, without: str, log: bool = False) -> CurvePrior | None:
        """Fits a prior to the learning curves of all studies except one.

        Args:
            without: The name of the study to leave out.
            log: Whether to fit the prior to the logarithms of the outcomes.

        Returns:
            The prior; ``None`` if no complete trial of the other studies has three intermediate
            values.
        """
        curves = [curve for curve in self.curves if curve.task != without]
        return CurvePrior.of_curves([c.in_logarithms() for c in curves] if log else curves)


def history_from_optuna(
    storage: str | BaseStorage, study_names: Sequence[str], rename: Mapping[str, str] | None = None
) -> OptunaHistory:
    """Reads old studies from an Optuna storage.

    The outcomes of a complete trial are its values. If the studies have one objective, the outcome
    of a pruned trial is a prediction of its final value. A
    :class:`~botorch_transfer.curves.CurvePrior`, fitted to the learning curves of all studies,
    computes this prediction from the trial's intermediate values. Failed trials, and pruned trials
    without an intermediate value, are kept without an outcome. If no complete trial has three
    intermediate values, no prediction is possible, and pruned trials with intermediate values are
    left out. Trials that have not finished are left out, too.

    All outcomes have the directions of the first study. If a study has the opposite direction, its
    values are multiplied by -1.

    The search space contains the parameters of all studies. A numeric range covers the ranges of
    all studies. A categorical parameter has the choices of all studies. The newest distribution
    determines whether the scale is logarithmic. A parameter is left out if it is numeric in some
    studies and categorical in other studies. If some complete trials of a study lack a parameter,
    the parameter becomes conditional. Its parent is a parameter whose values determine which trials
    lack the conditional parameter. If no such parent exists, the parameter is left out.

    Args:
        storage: The storage, or its URL.
        study_names: The names of the old studies, without the name of the current study.
        rename: Mapping from old names of parameters to new names.

    Returns:
        The old studies as a table with a search space. Pass this history to
        :class:`TransferSampler`, or pass ``runs`` and ``space`` to
        :func:`botorch_transfer.suggest`.

    Raises:
        ValueError: If the storage or a study does not exist, or if ``study_names`` is empty. Also
            if the studies have different numbers of objectives, if no parameter is usable, or if a
            parameter and another column have the same name.

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
            "The old studies have no parameter that varies and is in every complete trial of every "
            "study: make a table of the runs yourself, and give both history=table and space=."
        )
    return history


def load(storage: str | BaseStorage, study_names: Sequence[str]) -> list[Study]:
    """Loads studies from a storage; raises an error if the SQLite database does not exist yet.

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
    """Converts Optuna studies and Ax experiments to a table of runs.

    :func:`history_from_optuna` describes the conversion.

    Args:
        studies: Optuna studies and Ax experiments.
        rename: Mapping from old names of parameters to new names.

    Returns:
        The table of runs, with its search space and learning curves.
    """
    if not studies:
        raise ValueError("The history has no studies: give at least one study.")
    rename, old_studies = dict(rename or {}), [_finished(study) for study in studies]
    for old, new in rename.items():
        if not isinstance(new, str):
            raise ValueError(f"rename= gives {old!r} the name {new!r}: give one name as text.")
    directions = tuple(old_studies[0].directions)
    names = list(outcome_signs(directions))
    single = old_studies if len(directions) == 1 else []
    curves = [c for s in single for c in curves_of(s.trials, sign_of(s.directions[0]), s.name)]
    prior = CurvePrior.of_curves(curves)
    rows, found = list[dict[str, Any]](), dict[str, list[BaseDistribution]]()
    for study in old_studies:
        signs = direction_signs(study.name, study.directions, "the first study", directions)
        read = rows_of(study.trials, study.directions, names, prior)
        for trial, row in zip(study.trials, read, strict=True):
            if row[STATUS] == TrialState.PRUNED.name and np.isnan(row[names[0]]):
                continue
            row |= {name: sign * row[name] for name, sign in signs.items()}
            row[TASK] = study.name
            for key, value in trial.params.items():
                if (name := rename.get(key, key)) in row:
                    raise ValueError(
                        f"The name of parameter {name!r} of study {study.name!r} is already used "
                        "for a column of the table of runs: rename the parameter by rename=."
                    )
                row[name] = label(value)
                if trial.distributions[key] not in (known := found.setdefault(name, [])):
                    known.append(trial.distributions[key])
            rows.append(row)
    known_names = {name for study in old_studies for t in study.trials for name in t.params}
    if unknown := rename.keys() - known_names:
        raise ValueError(
            f"rename= names {min(unknown)!r}, which is in no old study: correct the name."
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
    """Logs a warning if the name of a missing parameter resembles one of the names ``spare``.

    Args:
        where: The history or study that lacks the parameter, for the message.
        name: The name of the missing parameter.
        spare: The names of columns that may hold the values of the missing parameter.
    """
    if likely := likely_column(name, spare):
        logger.warning(
            f"{where} lacks the parameter {name!r} and has the parameter {likely!r}: if both are "
            f"the same parameter, pass rename={{{likely!r}: {name!r}}}"
        )


def direction_signs(
    name: str, old: Sequence[StudyDirection], other: str, new: Sequence[StudyDirection]
) -> dict[str, float]:
    """Returns the factors, 1 or -1, that convert old values to the directions of a new study.

    Args:
        name: The name of the old study, for error messages.
        old: The direction of each objective of the old study.
        other: The words for the new study in error messages, such as ``"this study"``.
        new: The direction of each objective of the new study.

    Returns:
        A mapping from the outcome column of each objective to its factor: 1 if the objective has
        the same direction in both studies, else -1.

    Raises:
        ValueError: If the studies have different numbers of objectives.
    """
    if len(old) != len(new):
        raise ValueError(
            f"The old study {name!r} has {len(old)} objectives, and {other} has {len(new)}: give "
            "old studies with the same number of objectives."
        )
    signs = outcome_signs(new)
    return {name: sign * signs[name] for name, sign in outcome_signs(old).items()}


class _Finished(NamedTuple):
    """Name, directions and finished trials of one Optuna study or Ax experiment."""

    name: str
    directions: Sequence[StudyDirection]
    trials: Sequence[FrozenTrial]


#: Mapping from Ax's trial statuses to Optuna's trial states. Trials with other statuses are left
#: out.
AX_STATES = {
    "COMPLETED": TrialState.COMPLETE,
    "EARLY_STOPPED": TrialState.PRUNED,
    "FAILED": TrialState.FAIL,
}


def _is_study(part: Any) -> bool:
    """Returns whether an object is an Optuna study, an Ax client or an Ax experiment."""
    kind = type(part)
    is_of_ax = kind.__module__.startswith("ax.") and kind.__name__ in ("Client", "Experiment")
    return is_of_ax or isinstance(part, Study)


def _is_prior(part: Any) -> bool:
    """Returns whether an object is a prior, or a mapping whose values are all priors."""
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
        raise ValueError("An old study was deleted from its storage: omit the study.") from error


def _of_ax(client: Any) -> _Finished:
    """Converts the arms of an Ax experiment's finished trials to Optuna trials.

    Leaves out completed arms without an outcome, and arms outside of the search space.
    """
    from botorch_transfer.ax_experiments import curves_of, directions, experiment_of, own_space

    experiment = experiment_of(client)
    if not (goals := directions(experiment.optimization_config)):
        raise ValueError(f"Experiment {experiment.name!r} has no objective: omit this experiment.")
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
    """Converts Optuna studies and Ax experiments to an ``OptunaHistory``.

    Also accepts tables, priors and an ``OptunaHistory``, which need no conversion.

    Args:
        history: The old runs, in any form that :class:`TransferSampler` takes.
        rename: Mapping from old names of parameters or table columns to new names.

    Returns:
        For studies and experiments, an ``OptunaHistory``. For a table, the table with renamed
        columns. A prior or an ``OptunaHistory`` is returned unchanged. If no study or experiment
        has a finished trial, a warning is logged, and an empty table is returned.

    Raises:
        TypeError: If the history has none of the forms that :class:`TransferSampler` takes.
        ValueError: If a study was deleted. Also if ``rename`` is given for a prior or an
            ``OptunaHistory``.
    """
    if isinstance(history, OptunaHistory) or _is_prior(history):
        if rename:
            raise ValueError(
                "rename= does not apply to a prior or an OptunaHistory: rename the parameters "
                "before you fit the prior, or give rename= when you read the studies."
            )
        return history
    is_pair = isinstance(history, tuple) and len(history) == 2
    if is_pair and isinstance(history[0], str | PathLike | BaseStorage):
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
    wrong = next(part for part in studies if not _is_study(part))
    inside = "" if wrong is history else f" with a {type(wrong).__name__}"
    raise TypeError(
        f"history is a {type(history).__name__}{inside}: give a list of studies or Ax experiments, "
        "a pair (storage, study names), a table, or a prior."
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
        One curve for each trial with a final or intermediate value. The attribute ``row`` of a
        curve is the index of the trial in ``trials``. The curve of a complete trial ends with the
        trial's final value.
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
    """Maps the objectives' columns to their signs: 1 to maximize, -1 to minimize.

    The columns have Optuna's names: ``"value"``, or ``"values_0"`` and so on.
    """
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
    """Converts the trials of one Optuna study to rows of a table.

    :func:`history_from_optuna` describes the outcomes of pruned and failed trials.

    Args:
        trials: The trials.
        directions: The directions of the study.
        names: The column name of each objective.
        prior: The prior that predicts the final values of pruned trials; by default, a prior fitted
            to the study's complete trials.
        log: Whether the prior is fitted to the logarithms of outcomes. If so, the returned
            variances are variances of logarithms, but the returned outcomes are not logarithms.
        status: The name of the column of the trial's state.

    Returns:
        One row per trial. A row has the trial's constraints, outcomes and state, and the variance
        of the first outcome. An unknown outcome is NaN. The variance is zero unless the outcome is
        a prediction. A pruned trial without an intermediate value has the state ``"FAIL"``.
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
    """Builds a search space of the parameters of old studies, and merges their distributions.

    Leaves out parameters that are not usable, see :class:`OptunaHistory`.

    Args:
        frame: The table of complete trials.
        found: All distributions of each parameter, from the oldest to the newest study.

    Returns:
        The search space, or ``None`` if no parameter is usable. Also the merged distribution of
        each usable parameter, by name.
    """
    parameters: dict[str, Parameter] = {}
    distributions: dict[str, BaseDistribution] = {}
    # Start with parameters that have no missing values: they can be parents of other parameters.
    complete = {name: frame[name].notna().groupby(frame[TASK]).mean() for name in found}
    for name in sorted(found, key=lambda name: bool(complete[name].between(0, 1, "neither").any())):
        if (distribution := merged(found[name])) is None:
            logger.warning(
                f"Left out the parameter {name!r}: it is numeric in some old studies and "
                "categorical in other old studies"
            )
            continue
        recorded = complete[name].index[complete[name] > 0]
        if distribution.single() or recorded.empty:
            continue
        condition = None
        if (complete[name][recorded] < 1).any():
            rows = frame[frame[TASK].isin(recorded)]
            if (condition := find_condition(rows, name, list(parameters.values()))) is None:
                logger.info(
                    f"Left out the parameter {name!r}: some trials lack this parameter, and no "
                    "other parameter determines which trials lack it"
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
    """Converts an Optuna distribution to a parameter of this package.

    Integers with the step 1 and numbers without a step become a range. Numbers with another step
    become an ordinal parameter if there are at most ``MAX_LISTED_VALUES`` values. Otherwise, they
    become a range without a step, and :func:`value_of` rounds each number to the nearest value of
    the distribution.

    Args:
        name: The name of the parameter.
        distribution: Optuna's distribution, with more than one value.
        active_if: The condition under which the parameter is active; ``None`` if the parameter is
            always active.

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
    """Converts a parameter of this package to the equivalent Optuna distribution.

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
        "support: leave the parameter out of the search space."
    )


def merged(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """Merges all distributions of a parameter into one distribution.

    Args:
        distributions: At least one distribution; the newest distribution is last.

    Returns:
        For numeric distributions, a distribution from the lowest to the highest bound. This
        distribution has the scale of the newest distribution. If all distributions have the same
        step and a common grid, the step is kept. If all distributions contain only integers, so
        does the result. For categorical distributions, a distribution with all choices, in order of
        first appearance. ``None`` if some distributions are numeric and others are categorical.

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
    """Converts a categorical choice to a table cell.

    Text, booleans and numbers do not change. ``None``, NaN and any other choice become text, such
    as ``"None"``.
    """
    plain = isinstance(choice, str | bool | int | float) and choice == choice  # not NaN
    return choice if plain else str(choice)


def value_of(distribution: BaseDistribution, cell: Any) -> Any:
    """Converts a table cell to a value that an Optuna distribution contains.

    Args:
        distribution: The distribution.
        cell: A number, or the :func:`label` of a categorical choice.

    Returns:
        For a categorical distribution, the choice with this label. For a numeric distribution, the
        nearest value of the distribution.
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
    """Converts a parameter's value in an old run to a value for its current distribution.

    Args:
        distribution: The parameter's current distribution.
        cell: The old value: a number, or the :func:`label` of a categorical choice.

    Returns:
        For a categorical distribution, the label of the choice that equals the old value; the
        choice ``"3"`` equals the number 3. ``None`` if no choice equals the old value. For a
        numeric distribution, the old value as a number, which may be out of range. ``None`` if the
        old value is not a number, or if it is not positive and the distribution is logarithmic.
    """
    number = _number_in(cell)
    if isinstance(distribution, CategoricalDistribution):
        labels = map(label, distribution.choices)
        return next((c for c in labels if str(c) == str(cell) or _number_in(c) == number), None)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    has_place = number > 0 if distribution.log else number == number
    return number if has_place else None


def _number_in(cell: Any) -> float:
    """Converts a table cell to a number; a boolean, or text that is not a number, becomes NaN."""
    return float("nan" if isinstance(cell, bool) else to_numeric(cell, errors="coerce"))


def has_value(distribution: BaseDistribution, value: Any) -> bool:
    """Returns whether an Optuna distribution contains a value."""
    if isinstance(distribution, CategoricalDistribution):
        return label(value) in [label(choice) for choice in distribution.choices]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isclose(value_of(distribution, value), value, abs_tol=1e-8)
