"""``TransferSampler``: an Optuna sampler that uses the models of :func:`botorch_transfer.suggest`.

The sampler converts trials to a table with one row per trial. The models suggest the next row, and
the sampler converts this row to parameter values. The sampler also decides which parameters the
models suggest. If several workers share a study, each worker avoids the rows that other workers
have chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, SupportsFloat, cast

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler

# Optuna's samplers use this private function to store the result of a constraints_func.
from optuna.samplers._base import _process_constraints_after_trial
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from botorch_transfer.curves import CurvePrior
from botorch_transfer.data.measurements import Outcome, numbers, variance_column
from botorch_transfer.memo import Memo
from botorch_transfer.old_studies import (
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
    sign_of,
    value_of,
    warn_of_rename,
)
from botorch_transfer.progress import logged_once
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.cells import plain
from botorch_transfer.search_space.guess import warn_of_goal
from botorch_transfer.search_space.space import ARGUMENTS, check_arguments
from botorch_transfer.suggestion.next_rows import suggest_rows
from botorch_transfer.suggestion.reading import read_tables, with_logarithms
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import ExhaustedSpaceError, is_among

logger = logging.getLogger(__name__)

#: Maximum number of objectives. The computation of the hypervolume of more objectives is too slow.
MAX_OBJECTIVES = 3

#: Maximum number of attempts to choose a configuration that no other worker has chosen.
MAX_ATTEMPTS = 5

_PARAMS = "transfer:params"
_STATES = (*FINISHED, TrialState.RUNNING)
_ARGUMENTS = (
    *ARGUMENTS,
    ("space", SearchSpace | Mapping, "give a SearchSpace, or Optuna's distributions by name"),
    ("independent_sampler", BaseSampler, "give a sampler, not its class"),
    ("constraints_func", Callable, "give a function of a trial"),
)
_one_at_a_time = Lock()  # global, because samplers are pickled and locks cannot be


class TransferSampler(BaseSampler):
    """Sampler for Optuna that starts from earlier studies.

    Use it when old studies share parameters with the new study. A transfer model suggests the
    parameters of all trials, including the first trial. The sampler stores its state in the study,
    so an interrupted study can continue. Pre-training runs at the first trial, once per process.

    **Parameters.** The model suggests values for the parameters that occur in all complete trials
    of the study, within the distributions of the study. The history may lack some of these
    parameters. With ``space=``, the model suggests only parameters of this space. Before the first
    complete trial, the model suggests the parameters of ``space=``; without ``space=``, the
    parameters of the history. A suggested value outside the parameter's distribution in the study
    is changed to the nearest value in this distribution.
    ``independent_sampler`` samples all other parameters. It also samples a conditional parameter if
    the objective function asks for this parameter although its condition is false. The range,
    scale, type and choices of a parameter may differ from the history: the sampler converts old
    values. If only some old values of a parameter can be converted, the runs with the other values
    are left out, with a warning. If none can be converted, all runs are kept, and the parameter's
    old values count as unknown.

    **Trials.** Running trials are pending points: a new trial is chosen to improve on these trials,
    too. A trial counts as failed if its state is ``FAIL``, if a value is infinite, or if the trial
    was pruned without an intermediate value. A
    :class:`~botorch_transfer.feasibility.FeasibilityModel` learns where trials fail. The outcome of
    a pruned trial with intermediate values is its predicted final value, as in
    :func:`history_from_optuna`. If a trial lacks the value of one objective or constraint, its
    other values are still used.

    **Several objectives.** With two or three objectives, the sampler maximizes the expected
    hypervolume improvement. More objectives raise an error. The history must contain at least one
    of the objectives. If the history lacks an objective or a constraint, a plain GP models it.

    If all configurations have been tried, the sampler repeats a random configuration.

    Args:
        history: Old runs in one of five forms: the result of :func:`history_from_optuna`; a list of
            Optuna studies or Ax experiments; a pair of a storage (or its URL) and study names; a
            table with one row per run; or a prior, such as ``SourceGPs.load(path)``. For several
            outcomes, give a mapping from outcomes to priors instead of one prior. An old study with
            the name of the current study is left out. If an old study has the opposite direction,
            its values are multiplied by -1. If the history has no run, the study starts with a
            space-filling design and a plain GP.
        model: The class of the model; by default the same model as in
            :func:`botorch_transfer.suggest`.
        space: The search space, as a ``SearchSpace`` or as Optuna's distributions by name.
            Optuna's distributions have no conditions, so the conditions of the old studies apply.
            The space is required if the history is a table or a prior. For a prior, give the search
            space to which the prior was fitted.
        seed: The random seed.
        independent_sampler: The sampler for parameters that the model does not suggest; by default
            a ``RandomSampler``.
        constraints_func: Function that returns the constraint values of a trial, as in Optuna's
            samplers. A constraint is satisfied if its value is not positive. Leave out
            ``constraints_func`` if the objective function calls ``trial.set_constraint``.
            Before the first complete trial, the constraints of the old studies apply.
        task: The column of the task names in a table.
        rename: Mapping from old names of parameters or table columns to new names.
        missing: Values of parameters that the old runs do not record, by parameter name. If such a
            parameter is not in ``missing``, its values in the old runs are unknown.
        outcome: The column of the objective in a table, or a list of columns for several
            objectives. By default Optuna's names: ``"value"``, or ``"values_0"`` and so on. The
            columns are minimized or maximized as in the study.
        log: Names of positive objectives to model by their logarithm; ``True`` for all objectives.
            Use it for losses whose best values are many times smaller than typical values. If the
            history is a prior, the prior must be fitted to the logarithm, too.
        robust: Whether values far worse than the median are clipped at a limit, as in
            :func:`botorch_transfer.suggest`.

    Raises:
        TypeError: If ``history`` has none of the forms that its description lists.
        ValueError: If the history is a table or a prior and ``space`` is missing. Also if
            ``missing`` names a parameter that is neither in ``space`` nor in an old study, or if
            old studies have different numbers of objectives.

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
        own = self._history.space if of_optuna else None
        parameters: Sequence[Parameter] = () if own is None else own.parameters
        listed = space.values() if isinstance(space, Mapping) else ()
        if not all(isinstance(distribution, BaseDistribution) for distribution in listed):
            space = SearchSpace.from_dict(cast(Any, space))
        if isinstance(space, Mapping):
            self._initial = {name: d for name, d in space.items() if not d.single()}
            names = self._initial.keys()
            old = {p.name: p.active_if for p in parameters if names >= {*(p.active_if or ())}}
            parameters = [parameter_of(name, self._initial[name], old.get(name)) for name in names]
            # Parents must precede their children.
            parameters.sort(key=lambda p: list(old).index(p.name) if p.active_if else -1)
        elif space is not None:
            parameters = space.parameters
            self._initial = {p.name: distribution_of(p) for p in parameters}
        elif of_optuna:
            self._initial = self._history.distributions
        elif not isinstance(self._history, DataFrame) or len(self._history):
            raise ValueError("If history= is a table or a prior, space= is required: give space=.")
        self._known = {parameter.name: parameter for parameter in parameters}
        self._is_settled = space is not None
        self._model = model
        self._rng = np.random.default_rng(seed)
        self._independent = independent_sampler or RandomSampler(seed=seed)
        self._constraints_func = constraints_func
        self._task = TASK if of_optuna else task
        self._status = "status" if isinstance(self._history, DataFrame) else STATUS
        self._outcome = [outcome] if isinstance(outcome, str) else outcome
        if of_optuna and not {*(self._outcome or ())} <= {*outcome_signs(self._history.directions)}:
            raise ValueError(f"outcome= is {outcome!r}, but history= is no table: omit outcome=.")
        self._log, self._robust, self._missing = log, robust, dict(missing or {})
        self._logged = set[str]()
        self._priors = Memo(size=8)  # priors of learning curves, by the name of the study
        self._encoded = Memo(size=8)  # encoded old runs, by content
        if space is not None:
            columns = list(space if isinstance(space, Mapping) else space.columns)
            if unknown := self._unknown(columns):
                raise ValueError(
                    f"missing= names {unknown[0]!r}, which is not a parameter: use one of "
                    f"{', '.join(columns)}."
                )

    def _unknown(self, names: Collection[str]) -> list[str]:
        """Returns parameters in ``missing=`` that are neither in ``names`` nor in an old study."""
        old = self._history.parameters if isinstance(self._history, OptunaHistory) else ()
        return sorted(self._missing.keys() - {*names, *old})

    def reseed_rng(self) -> None:
        """Draws a new random seed, so that copies of the sampler in several workers differ."""
        self._rng = np.random.default_rng()
        self._independent.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Calls ``before_trial`` of the independent sampler."""
        self._independent.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Stores the constraint values of a trial that has finished.

        Logs a warning if ``missing=`` has a parameter that neither this study nor an old study has,
        or if ``constraints_func`` returns booleans.

        Raises:
            TypeError: If ``constraints_func`` does not return numbers.
        """
        with logged_once(self._logged):
            if self._missing and not self._is_settled and state == TrialState.COMPLETE:
                names = {name for known in (trial, *_complete(study)) for name in known.params}
                for name in self._unknown(names):
                    logger.warning(f"missing= names the parameter {name!r}, which no trial has")
            if self._constraints_func is not None:
                _process_constraints_after_trial(self._constraints, study, trial, state)
        self._independent.after_trial(study, trial, state, values)

    def _constraints(self, trial: FrozenTrial) -> tuple[Any, ...]:
        """Calls ``constraints_func``, and checks its result."""
        found = cast(Any, self._constraints_func)(trial)
        values = tuple(found) if np.iterable(found) else (None,)
        if not all(isinstance(value, SupportsFloat) for value in values):
            raise TypeError(f"constraints_func returned {found!r}: return a list of numbers.")
        if {bool, np.bool_} & {*map(type, values)}:
            text = "constraints_func returns booleans, and True is read as violated: return numbers"
            logger.warning(text)
        return values

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Samples one parameter that ``sample_relative`` has not sampled.

        Args:
            study: The study.
            trial: The trial.
            param_name: The name of the parameter.
            param_distribution: The distribution of the parameter.

        Returns:
            Before the first complete trial, the transfer model's suggestion, changed to the nearest
            value in the distribution. After the first complete trial, or if the model does not
            suggest this parameter, a value from ``independent_sampler``.
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
        """Returns whether the parameters of the study are still unknown.

        They are unknown if the study has no complete trial, and the user gave no ``space=``.
        """
        return not self._is_settled and not _complete(study)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the distributions of the parameters that the model suggests together.

        :class:`TransferSampler` describes which parameters the model suggests.

        Args:
            study: The study.
            trial: The trial.

        Returns:
            The distributions by parameter. The dictionary is empty if there is neither a ``space=``
            nor a complete trial.

        Raises:
            ValueError: If the search space of the prior differs from the distributions in the
                study. Also if a parameter has the name of an outcome, task or state column, or if
                the number of objectives is not supported.
        """
        self._check_objectives(study)
        if self._is_first(study):
            return {}
        complete = _complete(study)
        names = dict.fromkeys(self._known)
        if not self._is_settled:  # add parameters that the space of the history lacks
            names |= dict.fromkeys(name for trial in complete for name in trial.params)
        self._check_names(study, names, complete)
        found = {name: seen for name in names if (seen := self._seen(name, complete))}
        if not isinstance(self._history, OptunaHistory | DataFrame) and found != self._initial:
            raise ValueError(
                "The study's parameters differ from the search space of the prior: fit a prior on "
                "the study's search space, or pass the old runs as history=."
            )
        space = self._space_of(found, complete)
        return {} if space is None else {p.name: found[p.name] for p in space.parameters}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Asks the transfer model for values of all parameters in ``search_space``.

        Args:
            study: The study.
            trial: The trial.
            search_space: The distributions of the parameters.

        Returns:
            The suggested values by parameter, without inactive parameters.
        """
        if (space := self._space_of(search_space, _complete(study))) is None:
            return {}
        with _one_at_a_time:  # so that each thread sees the choices of other threads
            for _ in range(MAX_ATTEMPTS):
                others = _others(study, trial)
                with logged_once(self._logged):
                    params = self._suggest(study, others, space, search_space)
                own = {name: label(value) for name, value in params.items()}
                # Store the choice at once, so that other workers see it. If two workers make the
                # same choice, the second worker finds the stored choice of the first worker, and
                # chooses again.
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
            old = old.assign(**{name: np.nan for name in names if name not in old})
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
            # Decode X, because a column of outcomes in ``rows`` may have the name of a parameter.
            row = space.decode(suggest_rows(tables, 1, model, seed).X)
        except ExhaustedSpaceError:
            logger.info("All configurations have been tried: a random configuration is repeated")
            row = space.sample(1, seed)
        active = [name for name in space.columns if row[name].notna().iloc[0]]
        return {name: value_of(search_space[name], row[name].iloc[0]) for name in active}

    def _check_names(
        self, study: Study, names: Collection[str], complete: Sequence[FrozenTrial]
    ) -> None:
        """Raises an error if a parameter has the name of an outcome, task or state column.

        Logs a warning if a parameter of ``space=`` may have another name in the trials, or if the
        name of an outcome suggests the opposite of the study's direction.
        """
        columns = {self._task, self._status, *(o.name for o in self._outcomes(study, ()))}
        if clash := columns & set(names):
            raise ValueError(
                f"The parameter {min(clash)!r} has the name of a column of outcomes, tasks or "
                "states: give the parameter another name."
            )
        own = {name: d for trial in complete for name, d in trial.distributions.items()}
        extra = [name for name, d in own.items() if name not in names and not d.single()]
        lost = [n for n in names if n not in own and self._seen(n, complete) is None]
        with logged_once(self._logged):
            for outcome, direction in zip(self._outcome or (), study.directions, strict=False):
                warn_of_goal(outcome, sign_of(direction), "direction= of the study")
            if lost and extra:  # without a space=, names contains all parameters of the trials
                logger.warning(
                    f"Parameter {lost[0]!r} is only in space=, and parameter {extra[0]!r} is only "
                    "in the trials: if both are the same parameter, use the same name"
                )

    def _check_objectives(self, study: Study) -> None:
        if (count := len(study.directions)) > MAX_OBJECTIVES:
            raise ValueError(f"The study has {count} objectives: give at most {MAX_OBJECTIVES}.")
        if isinstance(self._history, OptunaHistory):
            self._signs(study, self._history)
            if not study.trials[1:]:
                self._history.compare_directions(study.directions)
        elif self._outcome is not None and len(self._outcome) != count:
            raise ValueError(
                f"outcome= names {len(self._outcome)} columns, but the study has {count} "
                "objectives: give one column per objective."
            )

    def _signs(self, study: Study, history: OptunaHistory) -> dict[str, float]:
        old = history.runs[TASK].iloc[0], history.directions
        return direction_signs(*old, "this study", study.directions)

    def _seen(self, name: str, complete: Sequence[FrozenTrial]) -> BaseDistribution | None:
        """Returns the distribution that a parameter has in all complete trials.

        Returns ``None`` if the trials' distributions differ. Also returns ``None`` if a trial lacks
        the parameter although the parameter's condition is true, or has the parameter although the
        condition is false. If no trial has the parameter, and the condition is false in all trials,
        returns the parameter's distribution in ``space=``; without ``space=``, the parameter's
        distribution in the history.
        """
        condition = self._condition(name, complete)
        if any((name in t.params) != _is_active(condition, t.params) for t in complete):
            return None
        found = [trial.distributions[name] for trial in complete if name in trial.params]
        only = found[0] if found else self._initial.get(name)
        return only if all(distribution == only for distribution in found) else None

    def _condition(self, name: str, complete: Sequence[FrozenTrial]) -> Mapping[str, Any]:
        """Returns the condition of a parameter, a mapping from parents to lists of values.

        The parameter is active if the value of each parent is in the parent's list. The mapping is
        empty if the parameter is not conditional. It is also empty if each complete trial has the
        parameter, and the condition is false in some of these trials.
        """
        condition = (name in self._known and self._known[name].active_if) or {}
        is_wrong = not all(_is_active(condition, trial.params) for trial in complete)
        return {} if is_wrong and _is_in_all(name, complete) else condition

    def _space_of(
        self, distributions: Mapping[str, BaseDistribution], complete: Sequence[FrozenTrial]
    ) -> SearchSpace | None:
        """Converts Optuna distributions to a search space, with the conditions of the history.

        Leaves out parameters with a single value. Also leaves out a parameter whose parent is left
        out, unless the parameter occurs in all complete trials. Returns ``None`` if no parameter
        remains.
        """
        known, kept = self._known, dict[str, Parameter]()
        for name in dict.fromkeys([*known, *distributions]):
            distribution = distributions.get(name)
            if distribution is None or distribution.single():
                continue
            condition = {
                parent: tuple(v for v in values if parent in kept and kept[parent].contains(v))
                for parent, values in self._condition(name, complete).items()
                if parent in kept or not complete or not _is_in_all(name, complete)
            }
            if not all(condition.values()):
                continue
            active_if = condition or None
            if name in known and self._initial[name] == distribution:
                kept[name] = replace(known[name], active_if=active_if)  # type: ignore[type-var]
            else:
                kept[name] = parameter_of(name, distribution, active_if)
        with logged_once(self._logged):
            return SearchSpace(list(kept.values())) if kept else None

    def _outcomes(self, study: Study, trials: Sequence[FrozenTrial]) -> list[Outcome]:
        """Returns the objectives and the constraints of the study.

        Before the first complete trial, the study's constraints are not known, so the constraints
        of the history are returned. Logs a warning if the history has constraints, but the complete
        trials of the study have none.
        """
        signs = outcome_signs(study.directions)
        named = zip(self._outcome or signs, signs.values(), strict=True)
        outcomes = with_logarithms([Outcome(*part) for part in named], self._log)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        limits = list(dict.fromkeys(f"constraint_{k}" for t in complete for k in t.constraints))
        old = self._history.constraints if isinstance(self._history, OptunaHistory) else ()
        if complete and old and not limits:
            logger.warning(
                "The old studies have constraints, but this study has none, so the old constraints "
                "are ignored: use trial.set_constraint or constraints_func="
            )
        return outcomes + [Outcome(n, -1.0, limit=0.0) for n in (limits if complete else old)]

    def _old_runs(
        self, study: Study, space: SearchSpace, search_space: Mapping[str, BaseDistribution]
    ) -> tuple[DataFrame | None, dict[str, Any]]:
        """Converts the old runs to the directions and distributions of the current study.

        Leaves out an old study with the name of the current study.

        Returns:
            A table of the old runs; ``None`` if the history is a prior. Also a mapping from
            parameters to assumed values: the values that the user gave by ``missing=``. If the
            history has Optuna studies, the mapping also has the value ``None`` for each parameter
            without an old value and without a value in ``missing=``.
        """
        if not isinstance(self._history, OptunaHistory):
            return self._history if isinstance(self._history, DataFrame) else None, self._missing
        old = self._history.runs[self._history.runs[TASK] != study.study_name]
        signs = self._signs(study, self._history)
        old = old.assign(**{name: sign * old[name] for name, sign in signs.items()})
        known = self._history.distributions
        for name in [n for n in space.columns if n in old and search_space[n] != known.get(n)]:
            cells = old[name].map(partial(converted, search_space[name]), na_action="ignore")
            lost = old[name][old[name].notna() & cells.isna()]
            treatment = "all count as unknown" if cells.isna().all() else "their runs are left out"
            if len(lost):
                logger.warning(
                    f"{len(lost)} old values of {name!r}, such as {plain(lost.iloc[0])!r}, do not "
                    f"fit the parameter's new distribution {search_space[name]}: {treatment}"
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
            logger.warning("Left out all old runs: none of them has a parameter of the study")
            old = old[:0]
        given = {name: value for name, value in self._missing.items() if name in space.columns}
        return old, dict.fromkeys(name for name in space.columns if name not in old) | given

    def _curves(self, study: Study) -> CurvePrior | None:
        """Returns a prior that is fitted to the learning curves of the old Optuna studies.

        Returns ``None`` if the history has no Optuna studies, or if no complete trial of these
        studies has a learning curve.
        """
        if not isinstance(self._history, OptunaHistory):
            return None
        learn = partial(self._history.curve_prior, study.study_name, bool(self._log))
        return self._priors.recall(study.study_name, learn)


def _is_in_all(name: str, trials: Sequence[FrozenTrial]) -> bool:
    return all(name in trial.params for trial in trials)


def _is_active(condition: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    return all(
        parent in params and label(params[parent]) in values for parent, values in condition.items()
    )


def _cells(
    space: SearchSpace, search_space: Mapping[str, BaseDistribution], trial: FrozenTrial
) -> dict[str, Any] | None:
    """Returns a mapping from the active parameters of a trial to their values as table cells.

    Returns ``None`` if the trial lacks an active parameter, or if a value is outside its
    distribution in ``search_space``.
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
    """Returns the finished and running trials of a study, except ``trial``.

    With Hyperband, ``study.get_trials`` would only return trials of one bracket, so this function
    reads the storage.
    """
    trials = study._storage.get_all_trials(study._study_id, deepcopy=False, states=_STATES)
    return [other for other in trials if other.number != trial.number]


def _complete(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _params(trial: FrozenTrial) -> dict[str, Any]:
    """Returns a trial's parameter values by name.

    For a running trial, includes suggested and enqueued values of parameters that the objective
    function has not asked for yet.
    """
    if trial.state.is_finished():
        return trial.params
    attributes = trial.system_attrs
    return {**attributes.get(_PARAMS, {}), **attributes.get("fixed_params", {}), **trial.params}
