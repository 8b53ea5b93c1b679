"""``TransferSampler``: converts trials to a table of runs, and the next row to a trial.

The sampler decides which parameters are sampled together, and it converts trials to outcomes. A
worker avoids the rows that other workers have chosen. Models and the optimization of the
acquisition function come from :func:`botorch_transfer.suggest`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, cast

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler

# Optuna's samplers use this private function to store the result of a constraints_func.
from optuna.samplers._base import _process_constraints_after_trial
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from botorch_transfer.curves import CurvePrior
from botorch_transfer.data.measurements import numbers, variance_column
from botorch_transfer.data.outcome import Outcome
from botorch_transfer.memo import Memo
from botorch_transfer.optuna.history import (
    FINISHED,
    STATUS,
    TASK,
    OptunaHistory,
    converted,
    direction_signs,
    distribution_of,
    has_value,
    label,
    outcome_signs,
    parameter_of,
    read_studies,
    rows_of,
    value_of,
    warn_of_rename,
)
from botorch_transfer.progress import logged_once
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.cells import plain
from botorch_transfer.search_space.space import ARGUMENTS, check_arguments
from botorch_transfer.suggestion.next_rows import suggest_rows
from botorch_transfer.suggestion.reading import read_tables, with_logarithms
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import ExhaustedSpaceError, is_among

logger = logging.getLogger(__name__)

#: Maximum number of objectives: with more objectives, the hypervolume takes too long to compute.
MAX_OBJECTIVES = 3

#: Maximum number of attempts to choose a row that no other worker has chosen.
MAX_ATTEMPTS = 5

_PARAMS = "transfer:params"
_STATES = (*FINISHED, TrialState.RUNNING)
_ARGUMENTS = (
    *ARGUMENTS,
    ("space", SearchSpace | Mapping, "give a SearchSpace, or Optuna's distributions by name"),
    ("independent_sampler", BaseSampler, "give a sampler, not its class"),
    ("constraints_func", Callable, "give a function of a trial"),
)
_one_at_a_time = Lock()  # not an attribute, because samplers are pickled


class TransferSampler(BaseSampler):
    """Sampler for Optuna that starts from earlier studies.

    Use it when old studies share parameters with the new study. The sampler suggests by a transfer
    model from the first trial on. All state is in the study: an interrupted study continues from
    its storage. Pre-training runs at the first trial, once per process.

    **Parameters.** The model suggests values for the parameters that occur in all complete trials
    of the study, within the distributions of the study. The history may lack some of these
    parameters. With ``space=``, the model only suggests parameters of this space. Before the first
    complete trial, the model suggests the parameters of the history. If a suggested value is
    outside the range that the objective function asks for, the nearest value inside replaces it.
    ``independent_sampler`` samples all other parameters. It also samples a conditional parameter if
    the objective function suggests the parameter while it is inactive. Ranges, scales, kinds and
    choices may differ from the history: the sampler converts old values. An old run with a value
    that cannot be converted is left out with a warning. If no old value of a parameter can be
    converted, the runs are kept, and the parameter's old values count as unknown.

    **Trials.** Running trials are pending: a new trial is chosen to improve on the running trials,
    too. A trial counts as failed if its state is failed, if a value is infinite, or if it is pruned
    without an intermediate value. A :class:`~botorch_transfer.feasibility.FeasibilityModel` learns
    where trials fail. The outcome of a pruned trial with intermediate values is its predicted final
    value, as in :func:`history_from_optuna`. A trial that lacks the value of an objective or
    constraint still counts for the objectives and constraints whose values it has.

    **Several objectives.** The sampler maximizes the expected hypervolume improvement of up to
    three objectives. The history must contain at least one objective. Objectives and constraints
    that the history lacks have a plain GP.

    If all configurations have been tried, the sampler repeats a random configuration.

    Args:
        history: Old runs: the result of :func:`history_from_optuna`; Optuna studies or Ax
            experiments; a storage or its URL with the names of studies; a table with one row per
            run; or a saved prior, such as ``SourceGPs.load(path)``, or a mapping from outcomes to
            priors. An old study with the name of the current study is left out. The values of an
            old study with the opposite direction change their sign. If the history has no run, the
            study starts with a space-filling design and a plain GP.
        model: The class of the model; by default the same model as in
            :func:`botorch_transfer.suggest`.
        space: The search space, as a ``SearchSpace`` or as Optuna's distributions by name. It is
            needed if the history is a table or a prior. It must be the space on which the prior was
            fitted.
        seed: The random seed.
        independent_sampler: The sampler of the parameters that the model does not suggest; by
            default a ``RandomSampler``.
        constraints_func: Function that returns the constraints of a trial, as in Optuna's samplers.
            A constraint is satisfied if it is not positive. Not needed with
            ``trial.set_constraint``.
        task: The column of the task names in a table.
        rename: New names of old parameters, or of columns of a table, by old name.
        missing: Values of parameters that old runs do not record, by name. If a parameter is not
            named here, its old values are unknown.
        outcome: The column of the objective in a table, or a list of columns for several
            objectives. By default Optuna's names: ``"value"``, or ``"values_0"`` and so on. The
            columns have the directions of the study.
        log: Names of positive objectives to model by their logarithm; ``True`` for all objectives.
            Use it for losses whose best values are many times smaller than typical values. A prior
            must then be fitted to the logarithm.
        robust: Whether values far worse than the median are replaced by a limit, as in
            :func:`botorch_transfer.suggest`.

    Raises:
        TypeError: If the history has none of these forms.
        ValueError: If ``space`` is missing for a table or a prior, or if old studies have different
            numbers of objectives.

    Example:
        >>> import optuna
        >>> from pandas import DataFrame
        >>> old = DataFrame({"task": "monday", "x": [0.1, 0.4, 0.9], "value": [0.2, 0.1, 0.7]})
        >>> space = {"x": optuna.distributions.FloatDistribution(0, 1)}
        >>> sampler = TransferSampler(old, space=space, seed=0)
        >>> study = optuna.create_study(sampler=sampler)
        >>> study.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=2)
        >>> len(study.trials)
        2
    """

    def __init__(
        self,
        history: Any,
        model: Callable[..., Any] | None = None,
        space: SearchSpace | Mapping[str, BaseDistribution] | None = None,
        *,
        seed: int | None = None,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        task: str = TASK,
        rename: Mapping[str, str] | None = None,
        missing: Mapping[str, Any] | None = None,
        outcome: str | Sequence[str] | None = None,
        log: bool | str | Sequence[str] = False,
        robust: bool = True,
    ) -> None:
        given = {name: value for name, value in locals().items() if value is not None}
        check_arguments({**given, "history": None}, _ARGUMENTS)
        self._history = read_studies(history, rename)
        of_optuna = isinstance(self._history, OptunaHistory)
        self._initial: dict[str, BaseDistribution] = {}
        parameters: Sequence[Parameter] = ()
        listed = space.values() if isinstance(space, Mapping) else ()
        if not all(isinstance(distribution, BaseDistribution) for distribution in listed):
            space = SearchSpace.from_dict(cast(Any, space))
        if isinstance(space, Mapping):
            self._initial = {name: d for name, d in space.items() if not d.single()}
            parameters = [parameter_of(name, d) for name, d in self._initial.items()]
        elif space is not None:
            parameters = space.parameters
            self._initial = {p.name: distribution_of(p) for p in parameters}
        elif of_optuna:
            self._initial, own = self._history.distributions, self._history.space
            parameters = () if own is None else own.parameters
        elif not isinstance(self._history, DataFrame) or len(self._history):
            raise ValueError("A table or a prior needs a search space: give it by space=.")
        self._known = {parameter.name: parameter for parameter in parameters}
        self._is_settled = space is not None
        self._model = model
        self._rng = np.random.default_rng(seed)
        self._independent = independent_sampler or RandomSampler(seed=seed)
        self._constraints_func = constraints_func
        self._task = TASK if of_optuna else task
        self._status = "status" if isinstance(self._history, DataFrame) else STATUS
        self._outcome = [outcome] if isinstance(outcome, str) else outcome
        self._log, self._robust, self._missing = log, robust, dict(missing or {})
        self._logged = set[str]()
        self._priors = Memo(size=8)  # priors of learning curves, by the name of the study
        self._encoded = Memo(size=8)  # encoded old runs, by content

    def reseed_rng(self) -> None:
        """Draws a new seed, so that workers with copies of the sampler differ."""
        self._rng = np.random.default_rng()
        self._independent.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Calls ``before_trial`` of the independent sampler."""
        self._independent.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Stores the constraints of a trial that has finished."""
        if self._constraints_func is not None:
            _process_constraints_after_trial(self._constraints_func, study, trial, state)
        self._independent.after_trial(study, trial, state, values)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Samples a parameter that ``sample_relative`` has not sampled.

        Args:
            study: The study.
            trial: The trial.
            param_name: The name of the parameter.
            param_distribution: The distribution of the parameter.

        Returns:
            Before the first complete trial, the value that the transfer model suggests, or the
            nearest value in the distribution. Later, a value from ``independent_sampler``.
        """
        is_known = param_name in self._initial and self._is_first(study)
        if is_known and len(self._history.directions) == len(study.directions):
            known = trial.system_attrs.get(_PARAMS)
            row = known or self.sample_relative(study, trial, self._initial)
            cell = converted(param_distribution, row[param_name]) if param_name in row else None
            if cell is not None:
                return value_of(param_distribution, cell)
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _is_first(self, study: Study) -> bool:
        """Returns whether the distributions are unknown: no ``space``, and no complete trial."""
        return not self._is_settled and not _complete(study)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Finds the parameters that the model suggests; see :class:`TransferSampler`.

        Args:
            study: The study.
            trial: The trial.

        Returns:
            The distributions of these parameters.

        Raises:
            ValueError: If the prior has another search space than the study. Also if a parameter
                has the name of a column, or the study has an unsupported number of objectives.
        """
        self._check_objectives(study)
        if self._is_first(study):
            return {}
        complete = _complete(study)
        names = dict.fromkeys(self._known)
        if not self._is_settled:  # add parameters that the space of the history lacks
            names |= dict.fromkeys(name for trial in complete for name in trial.params)
        self._check_names(study, names, complete)
        seen = {name: self._seen(name, complete) for name in names}
        found = {name: distribution for name, distribution in seen.items() if distribution}
        is_prior = not isinstance(self._history, OptunaHistory | DataFrame)
        if is_prior and found != self._initial:
            raise ValueError(
                "The study's trials differ from the search space of the prior: fit a prior on the "
                "study's search space, or pass the old runs as history."
            )
        space = self._space_of(found, complete)
        return {} if space is None else {p.name: found[p.name] for p in space.parameters}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Suggests values of parameters by the model.

        Args:
            study: The study.
            trial: The trial.
            search_space: The distributions of the parameters.

        Returns:
            The values of the active parameters.
        """
        space = self._space_of(search_space, _complete(study))
        if space is None:
            return {}
        with _one_at_a_time:  # so that each thread sees the rows of the other threads
            for _ in range(MAX_ATTEMPTS):
                others = _others(study, trial)
                with logged_once(self._logged):
                    params = self._suggest(study, others, space, search_space)
                own = {name: label(value) for name, value in params.items()}
                # Store the row at once, so that other workers see it. If two workers choose the
                # same row, the worker that stores it last finds the other worker's row.
                study._storage.set_trial_system_attr(trial._trial_id, _PARAMS, own)
                known = {other.number for other in others if _params(other)}
                news = [t for t in _others(study, trial) if t.number not in known]
                rows = [own, *(_cells(space, search_space, other) for other in news)]
                X = space.encode(DataFrame([row for row in rows if row], columns=space.columns))
                if not is_among(X[:1], X[1:]).any():
                    break
        return params

    def _suggest(
        self,
        study: Study,
        others: Sequence[FrozenTrial],
        space: SearchSpace,
        search_space: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        outcomes = self._outcomes(study, others)
        objectives = [outcome.name for outcome in outcomes if outcome.is_objective]
        curves, log = self._curves(study), outcomes[0].log
        told = rows_of(others, study.directions, objectives, curves, log, self._status)
        placed = [_cells(space, search_space, trial) for trial in others]
        rows = [row | own for row, own in zip(told, placed, strict=True) if own is not None]
        names = [outcome.name for outcome in outcomes]
        columns = [*space.columns, *names, self._status, variance_column(names[0])]
        (old, missing), prior = self._old_runs(study, space, search_space), None
        if old is None:
            by_name = isinstance(self._history, Mapping) and self._history.keys() & set(names)
            known = self._history if by_name else {names[0]: self._history}
            prior = {name: known.get(name) for name in names}
        elif old.empty:
            old = None
        elif any(np.isfinite(numbers(old, name)).any() for name in objectives):
            absent = [name for name in names if name not in old]
            old = old.assign(**dict.fromkeys(absent, np.nan))
        elif isinstance(self._history, OptunaHistory):
            logger.warning("No old trial has a finite value: the study starts without a history")
            old = None
        tables = read_tables(
            Region(space),
            outcomes,
            old,
            DataFrame(rows, columns=columns),
            self._task,
            self._status,
            prior=prior,
            missing=missing,
            robust=self._robust,
            memo=self._encoded,
        )
        seed = int(self._rng.integers(2**31))
        model = self._model if tables.has_sources else None
        try:
            # Decode X, because ``rows`` has further columns with possibly equal names.
            row = space.decode(suggest_rows(tables, 1, model, seed).X)
        except ExhaustedSpaceError:
            logger.info("All configurations have been tried: the sampler repeats one at random")
            row = space.sample(1, seed)
        active = [name for name in space.columns if row[name].notna().iloc[0]]
        return {name: value_of(search_space[name], row[name].iloc[0]) for name in active}

    def _check_names(
        self, study: Study, names: Collection[str], complete: Sequence[FrozenTrial]
    ) -> None:
        """Raises an error if a parameter has a column's name; warns of names that no trial has."""
        columns = {self._task, self._status, *(o.name for o in self._outcomes(study, ()))}
        if clash := columns & set(names):
            raise ValueError(
                f"The parameter {min(clash)!r} has the name of a column of outcomes, tasks or "
                "states: give it another name."
            )
        own = {name for trial in complete for name in trial.params}
        with logged_once(self._logged):
            if own and own.isdisjoint(names):
                logger.warning(
                    f"No trial has a parameter of space= ({', '.join(names)}), so all values are "
                    "random: use the names of the trials' parameters in space= and in the history"
                )
            if isinstance(self._history, OptunaHistory):
                known = {*names, *self._history.parameters}
                for name in sorted(self._missing.keys() - known):
                    logger.warning(f"missing= has the parameter {name!r}, which no trial has")

    def _check_objectives(self, study: Study) -> None:
        count = len(study.directions)
        if count > MAX_OBJECTIVES:
            raise ValueError(f"The study has {count} objectives: give at most {MAX_OBJECTIVES}.")
        if isinstance(self._history, OptunaHistory):
            direction_signs("old", self._history.directions, study.directions)
        elif self._outcome is not None and len(self._outcome) != count:
            raise ValueError(
                f"outcome names {len(self._outcome)} columns, and the study has {count} "
                "objectives: give one column per objective."
            )

    def _seen(self, name: str, complete: Sequence[FrozenTrial]) -> BaseDistribution | None:
        """Returns the distribution of a parameter in all complete trials.

        Returns ``None`` if the distributions differ, or if a trial lacks the parameter where it is
        active or has it where it is inactive.
        """
        condition = self._condition(name, complete)
        if any((name in t.params) != _is_active(condition, t.params) for t in complete):
            return None
        found = [trial.distributions[name] for trial in complete if name in trial.params]
        # If no trial has the parameter, use the distribution of the history.
        only = found[0] if found else self._initial.get(name)
        return only if all(distribution == only for distribution in found) else None

    def _condition(self, name: str, complete: Sequence[FrozenTrial]) -> Mapping[str, Any]:
        """Returns the condition of a parameter; empty if all trials have the parameter."""
        is_always = bool(complete) and all(name in trial.params for trial in complete)
        return {} if is_always or name not in self._known else self._known[name].active_if or {}

    def _space_of(
        self, distributions: Mapping[str, BaseDistribution], complete: Sequence[FrozenTrial]
    ) -> SearchSpace | None:
        """Makes a search space of distributions, with the activity conditions of the history.

        Returns ``None`` if no parameter is left. Leaves out a parameter if its parent is left out.
        """
        known, kept = self._known, dict[str, Parameter]()
        for name in dict.fromkeys([*known, *distributions]):
            distribution = distributions.get(name)
            if distribution is None or distribution.single():
                continue
            condition = {
                parent: tuple(v for v in values if parent in kept and kept[parent].contains(v))
                for parent, values in self._condition(name, complete).items()
            }
            if not all(condition.values()):
                continue
            active_if = condition or None
            if name in known and self._initial[name] == distribution:
                kept[name] = replace(known[name], active_if=active_if)  # type: ignore[type-var]
            else:
                kept[name] = parameter_of(name, distribution, active_if)
        return SearchSpace(list(kept.values())) if kept else None

    def _outcomes(self, study: Study, trials: Sequence[FrozenTrial]) -> list[Outcome]:
        """Returns the objectives and the constraints of the study.

        Before the first complete trial, the constraints are the constraints of the history.
        """
        signs = outcome_signs(study.directions)
        named = zip(self._outcome or signs, signs.values(), strict=True)
        outcomes = with_logarithms([Outcome(*part) for part in named], self._log)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        limits = list(dict.fromkeys(f"constraint_{k}" for t in complete for k in t.constraints))
        if not complete and isinstance(self._history, OptunaHistory):
            limits = list(self._history.constraints)
        return outcomes + [Outcome(name, -1.0, limit=0.0) for name in limits]

    def _old_runs(
        self, study: Study, space: SearchSpace, search_space: Mapping[str, BaseDistribution]
    ) -> tuple[DataFrame | None, dict[str, Any]]:
        """Returns the old runs, converted to the directions and distributions of the study.

        Leaves out an old study with the name of the study. The table is ``None`` for a prior. The
        second result has the values of ``missing``, and ``None`` for other parameters without a
        column.
        """
        if not isinstance(self._history, OptunaHistory):
            return self._history if isinstance(self._history, DataFrame) else None, self._missing
        old = self._history.runs[self._history.runs[TASK] != study.study_name]
        signs = direction_signs("old", self._history.directions, study.directions)
        old = old.assign(**{name: sign * old[name] for name, sign in signs.items()})
        for name in [name for name in space.columns if name in old]:
            if search_space[name] == self._initial.get(name):
                continue
            cells = old[name].map(partial(converted, search_space[name]), na_action="ignore")
            lost = old[name][old[name].notna() & cells.isna()]
            treatment = "all count as unknown" if cells.isna().all() else "these runs are left out"
            if len(lost):
                logger.warning(
                    f"{len(lost)} old values of {name!r}, such as {plain(lost.iloc[0])!r}, cannot "
                    f"be converted to its new distribution {search_space[name]}: {treatment}"
                )
            if cells.isna().all():
                old = old.drop(columns=name)
            else:
                old = old.assign(**{name: cells}).drop(index=lost.index).infer_objects()
        spare = [name for name in old if name not in {*space.columns, TASK}]
        for name in space.columns:
            if name not in self._history.runs and name not in self._missing:
                warn_of_rename("The history", name, spare)
        if len(old) and not any(name in old for name in space.columns):
            logger.warning("Left out all old runs: they have none of the study's parameters")
            old = old[:0]
        known = {name: value for name, value in self._missing.items() if name in space.columns}
        return old, dict.fromkeys(name for name in space.columns if name not in old) | known

    def _curves(self, study: Study) -> CurvePrior | None:
        """Returns the prior of the old learning curves; ``None`` if no old curve is complete."""
        if not isinstance(self._history, OptunaHistory):
            return None
        learn = partial(self._history.curve_prior, study.study_name, bool(self._log))
        return self._priors.recall(study.study_name, learn)


def _is_active(condition: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    return all(
        parent in params and label(params[parent]) in values for parent, values in condition.items()
    )


def _cells(
    space: SearchSpace, search_space: Mapping[str, BaseDistribution], trial: FrozenTrial
) -> dict[str, Any] | None:
    """Returns the values of a trial's active parameters, as cells of a table.

    Returns ``None`` if the trial lacks a parameter, or if a value is outside the distribution.
    """
    params = _params(trial)
    cells: dict[str, Any] = {}
    for parameter in space.parameters:
        name = parameter.name
        # Look up parents in the cells, because inactive parents are not in the cells.
        if not _is_active(parameter.active_if or {}, cells):
            continue
        if name not in params or not has_value(search_space[name], params[name]):
            return None
        cells[name] = label(params[name])
    return cells


def _others(study: Study, trial: FrozenTrial) -> list[FrozenTrial]:
    """Returns the other finished and running trials; with Hyperband, from all brackets."""
    trials = study._storage.get_all_trials(study._study_id, deepcopy=False, states=_STATES)
    return [other for other in trials if other.number != trial.number]


def _complete(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _params(trial: FrozenTrial) -> dict[str, Any]:
    """Returns the parameters of a trial; of a running trial, also suggested and enqueued values."""
    if trial.state.is_finished():
        return trial.params
    attributes = trial.system_attrs
    return {**attributes.get(_PARAMS, {}), **attributes.get("fixed_params", {}), **trial.params}
