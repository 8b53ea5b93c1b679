"""Old studies as a table of runs, and the search space that they had.

Read this for the rules by which trials count: :func:`outcomes_of`, for old studies and for the one
being tuned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, get_storage
from optuna.study import Study, StudyDirection, load_study
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from botorch_transfer.optuna.distributions import label, merged, parameter_of
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.guess import find_condition

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
    with its last intermediate value, or with the median of the study's complete trials if that is
    worse: it was stopped because it was not promising. A pruned trial without an intermediate
    value, and a failed one, have no outcome. Trials that are not finished are left out.

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
        FloatParameter(name='lr', lower=1e-05, upper=1.0, log=True, active_if=None)
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
    for study in studies:
        if tuple(study.directions) != directions:
            raise ValueError(
                f"The study {study.study_name!r} has other directions than "
                f"{studies[0].study_name!r}: leave one of them out."
            )
        name = study.study_name
        trials = study.get_trials(deepcopy=False, states=FINISHED)
        for trial, outcomes in zip(trials, outcomes_of(trials, directions), strict=True):
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
    return OptunaHistory(frame, space, distributions, directions)


def outcome_names(number: int) -> list[str]:
    """Names of the outcomes' columns, as in Optuna's own tables."""
    return ["value"] if number == 1 else [f"values_{i}" for i in range(number)]


def constraint_name(key: str) -> str:
    """The column of a constraint."""
    return f"constraint_{key}"


def outcomes_of(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> NDArray[np.float64]:
    """The values with which the trials of one study count.

    See :func:`history_from_optuna` for the rule.

    Args:
        trials: The trials.
        directions: The directions of the study.

    Returns:
        An ``n x m`` array; NaN for trials without an outcome.
    """
    outcomes = np.full((len(trials), len(directions)), np.nan)
    for row, trial in zip(outcomes, trials, strict=True):
        if trial.state == TrialState.COMPLETE:
            row[:] = trial.values
    known = outcomes[np.isfinite(outcomes).all(axis=1)]
    if len(directions) > 1 or len(known) == 0:
        return outcomes
    worse = max if directions[0] == StudyDirection.MINIMIZE else min
    for row, trial in zip(outcomes, trials, strict=True):
        if trial.state == TrialState.PRUNED and trial.last_step is not None:
            last = trial.intermediate_values[trial.last_step]
            row[:] = worse(last, float(np.median(known))) if np.isfinite(last) else np.nan
    return outcomes


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
