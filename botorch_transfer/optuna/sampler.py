"""``TransferSampler``: the trials of a study as a table of runs, and the next row as a trial.

Read this for which parameters are sampled together, which trials count as what, and how several
workers avoid one another. Models and search are shared with :func:`botorch_transfer.suggest`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler

# Optuna's own way of storing what a constraints_func returns; all its samplers use it.
from optuna.samplers._base import _process_constraints_after_trial
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from pandas import DataFrame

from botorch_transfer.curves import CurvePrior
from botorch_transfer.data.columns import likely_column
from botorch_transfer.data.measurements import numbers, variance_column
from botorch_transfer.data.outcome import Outcome
from botorch_transfer.memo import Memo
from botorch_transfer.optuna.history import (
    STATUS,
    TASK,
    OptunaHistory,
    constraint_name,
    direction_signs,
    distribution_of,
    has_value,
    label,
    moved,
    number_in,
    outcome_names,
    parameter_of,
    read_studies,
    rows_of,
    sign_of,
    value_of,
)
from botorch_transfer.progress import logged_once
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.parameters import plain
from botorch_transfer.suggestion.next_rows import suggest_rows
from botorch_transfer.suggestion.reading import read_tables, with_logarithms
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import ExhaustedSpaceError, is_among

logger = logging.getLogger(__name__)

MAX_OBJECTIVES = 3
"""The most objectives; the hypervolume of more takes too long."""

MAX_ATTEMPTS = 5
"""Number of attempts if other workers choose the same row meanwhile."""

_PARAMS = "transfer:params"
_ROOMS = (
    *("data.columns", "data.measurements", "data.tables", "optuna.sampler"),
    *("search_space.cells", "suggestion.reading"),
)
_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
_one_at_a_time = Lock()  # not of the sampler, which is pickled


class TransferSampler(BaseSampler):
    """A sampler of Optuna that starts from earlier studies.

    It suggests by a transfer model, from the first trial on. Nothing is kept between calls: a study
    that was killed goes on from its storage. The history is pre-trained at the first trial, once in
    a process.

    **Parameters.** Parameters in all complete trials of the study are sampled together, by the
    study's distributions, also if the history lacks them; with ``space=`` only the named ones.
    Before the first complete trial, the history's parameters are sampled together, and their values
    are moved into the distributions that the objective function asks for. Other parameters, and
    conditional ones where they are inactive, go to ``independent_sampler``. Ranges, scales, kinds
    and choices may have changed since the history: old values are converted. Values that cannot be
    converted are left out, with a warning.

    **Trials.** Running ones are pending: a new trial is chosen to improve on them, too. From failed
    trials, and trials with infinite values, the sampler learns where trials fail
    (:class:`~botorch_transfer.feasibility.FeasibilityModel`). Pruned ones count by the rule of
    :func:`history_from_optuna`. Those without a value there count as failed. A trial counts for
    each objective and constraint that it has a value of.

    **Several objectives**, up to three, are maximized by the expected hypervolume improvement.
    Objectives and constraints that the history lacks have a plain GP; one objective must be in it.

    When all configurations have been tried, they are repeated at random.

    Args:
        history: Old runs: the result of :func:`history_from_optuna`; Optuna studies or Ax
            experiments; a storage or its URL with the names of studies; a table, one row a run; or
            a saved prior, such as ``SourceGPs.load(path)``, a mapping by outcome if there are
            several. An old study with the name of the one being tuned is left out, and one of the
            opposite direction is turned round. Without any run
            the study starts with a spread-out design and a plain GP.
        model: The model, a class of this package; by default the default of
            :func:`botorch_transfer.suggest`.
        space: The search space, as a ``SearchSpace`` or as Optuna's distributions by name. Needed
            for a table, and for a prior, which then holds for exactly this space.
        seed: The seed of all random numbers.
        independent_sampler: The sampler of other parameters; by default a random one.
        constraints_func: Returns a trial's constraints, feasible where they are not positive, as
            for Optuna's samplers. ``trial.set_constraint`` needs none.
        task: The column of a table that names the task.
        rename: New names of old parameters, or of a table's columns, by their old ones.
        missing: Values that parameters had which old runs do not record; others are unknown.
        outcome: The column of a table with the objective, a list if there are several; by default
            Optuna's names: ``"value"``, or ``"values_0"`` and so on. Its direction is the study's.
        log: Objectives to model by their logarithm, for losses whose best values are many times
            smaller than ordinary ones; ``True`` for all of them. They are positive. A prior is then
            of the logarithm.
        robust: Whether values far worse than a median one count as just bad, as in
            :func:`botorch_transfer.suggest`.

    Raises:
        TypeError: If the history is of another type.
        ValueError: If it needs a ``space``, or the old studies do not fit one another.

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
        self._history = read_studies(history, rename)
        of_optuna = isinstance(self._history, OptunaHistory)
        old = self._history.runs if of_optuna else self._history
        self._old: DataFrame | None = old if isinstance(old, DataFrame) else None  # else a prior
        self._initial: dict[str, BaseDistribution] = {}
        parameters: Sequence[Parameter] = ()
        if isinstance(space, Mapping) and any(isinstance(d, Mapping) for d in space.values()):
            space = SearchSpace.from_dict(space)
        if isinstance(space, Mapping):
            self._initial = {name: d for name, d in space.items() if not d.single()}
            parameters = [parameter_of(name, d) for name, d in self._initial.items()]
        elif space is not None:
            parameters = space.parameters
            self._initial = {p.name: distribution_of(p) for p in parameters}
        elif of_optuna:
            self._initial, own = self._history.distributions, self._history.space
            parameters = () if own is None else own.parameters
        elif self._old is None or len(self._old):
            raise ValueError("Give the search space of the table or prior by space=.")
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
        self._priors = Memo(size=8)  # of learning curves, by study and scale
        self._encoded = Memo(size=8)  # old runs, by content

    def reseed_rng(self) -> None:
        """Draws a new seed, for a worker that got a copy of the sampler."""
        self._rng = np.random.default_rng()
        self._independent.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Hands the trial to the sampler of other parameters."""
        self._independent.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
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
        """Samples a parameter that is not sampled with the others.

        Args:
            study: The study.
            trial: The trial.
            param_name: The parameter.
            param_distribution: Its distribution.

        Returns:
            Before the first complete trial, the value of the row that old runs suggest, moved into
            the distribution; else a value of ``independent_sampler``.
        """
        old = self._history.directions if isinstance(self._history, OptunaHistory) else ()
        fits = param_name in self._initial and len(old) == len(study.directions)
        if fits and self._is_first(study):
            row = trial.system_attrs.get(_PARAMS)
            row = self.sample_relative(study, trial, self._initial) if row is None else row
            value = moved(param_distribution, row[param_name]) if param_name in row else None
            if value is not None:
                return value
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _is_first(self, study: Study) -> bool:
        """Returns whether the distributions of the study are not known yet."""
        return not self._is_settled and not _complete(study)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Finds the parameters that are sampled together; see the class.

        Args:
            study: The study.
            trial: The trial.

        Returns:
            Their distributions.

        Raises:
            ValueError: If a prior has another search space.
        """
        self._check_objectives(study)
        if self._is_first(study):
            return {}
        found = self._initial
        complete = _complete(study)
        names = dict.fromkeys(self._known)
        if not self._is_settled:  # new ones, and ones that differ between old studies
            names |= dict.fromkeys(name for trial in complete for name in trial.params)
        self._check_names(study, names)
        if complete:
            seen = {name: self._seen(name, complete) for name in names}
            found = {name: distribution for name, distribution in seen.items() if distribution}
            if self._old is None and found != self._initial:
                raise ValueError(
                    "The prior is of the search space given, and the study's trials have another: "
                    "make a prior of the study's space, or hand over the runs themselves."
                )
        space = self._space_of(found, complete)
        return {} if space is None else {p.name: found[p.name] for p in space.parameters}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Suggests values of the parameters that are sampled together.

        Args:
            study: The study.
            trial: The trial.
            search_space: The parameters.

        Returns:
            Values of the active ones.
        """
        space = self._space_of(search_space, _complete(study))
        if space is None:
            return {}
        with _one_at_a_time:  # so that each thread sees what the others are trying
            for _ in range(MAX_ATTEMPTS):
                others = _others(study, trial)
                with logged_once(self._logged, *_ROOMS):
                    params = self._suggest(study, others, space, search_space)
                own = {name: label(value) for name, value in params.items()}
                # Other workers have to know them before the objective function asks for them. Of
                # two that choose the same at once, the one that stores it last sees the other's.
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
        old, prior = self._old_runs(study, space, search_space), None
        if old is None:
            by_name = isinstance(self._history, Mapping) and self._history.keys() & set(names)
            known = self._history if by_name else {names[0]: self._history}
            prior = {name: known.get(name) for name in names}
        elif old.empty:
            old = None
        elif not any(np.isfinite(numbers(old, name)).any() for name in objectives):
            if isinstance(self._history, OptunaHistory):
                logger.warning("No old trial has a finite value: the study goes on without them")
                old = None
            else:
                raise ValueError(
                    f"The history has no outcome {' or '.join(map(repr, objectives))} of another "
                    "study: name the column by outcome=, or use one of Optuna's samplers."
                )
        if old is not None:
            absent = [name for name in names if name not in old]
            old = old.assign(**dict.fromkeys(absent, np.nan))
        tables = read_tables(
            Region(space),
            outcomes,
            old,
            DataFrame(rows, columns=columns),
            self._task,
            self._status,
            prior=prior,
            missing=None if old is None else self._values_of_absent(space, old),
            robust=self._robust,
            memo=self._encoded,
        )
        seed = int(self._rng.integers(2**31))
        model = self._model if tables.has_sources else None
        try:
            # A parameter may have the name of a column that suggestions add to the rows.
            row = space.decode(suggest_rows(tables, 1, model, seed).X)
        except ExhaustedSpaceError:
            logger.info("All configurations have been tried: one is repeated")
            row = space.sample(1, seed)
        active = [name for name in space.columns if row[name].notna().iloc[0]]
        return {name: value_of(search_space[name], row[name].iloc[0]) for name in active}

    def _check_names(self, study: Study, names: Collection[str]) -> None:
        """Refuses parameters with the name of another column, and values of none of them."""
        columns = {self._task, self._status, *(o.name for o in self._outcomes(study, ()))}
        if clash := columns & set(names):
            raise ValueError(
                f"The parameter {min(clash)!r} has the name of a column of outcomes, tasks or "
                "states: give it another name."
            )
        of_studies = isinstance(self._history, OptunaHistory)
        known = {*names, *(self._history.parameters if of_studies else ())}
        for name in sorted(self._missing.keys() - known) if of_studies else ():
            likely = likely_column(name, known)
            message = f"missing has the parameter {name!r}, which no trial has" + (
                f": is {likely!r} meant?" if likely else ""
            )
            if self._is_settled:
                raise ValueError(message)
            with logged_once(self._logged, *_ROOMS):
                logger.warning(message)

    def _check_objectives(self, study: Study) -> None:
        count = len(study.directions)
        if count > MAX_OBJECTIVES:
            raise ValueError(
                f"The study has {count} objectives: TransferSampler takes up to {MAX_OBJECTIVES}."
            )
        if isinstance(self._history, OptunaHistory):
            direction_signs("old", self._history.directions, study.directions)
        elif self._outcome is not None and len(self._outcome) != count:
            raise ValueError(
                f"outcome names {len(self._outcome)} columns, and the study has {count} "
                "objectives: name one column for each."
            )

    def _seen(self, name: str, complete: Sequence[FrozenTrial]) -> BaseDistribution | None:
        """Returns the distribution of a parameter that a study's trials and old runs agree on."""
        condition = self._condition(name, complete)
        found: list[BaseDistribution] = []
        for trial in complete:
            active = _is_active(condition, trial.params)
            if active != (name in trial.distributions):
                return None
            if active and trial.distributions[name] not in found:
                found.append(trial.distributions[name])
        # A condition that was never met does not contradict the history.
        found = found or [self._initial[name]] if name in self._initial else found
        if len(found) != 1:
            return None
        return found[0]

    def _condition(self, name: str, complete: Sequence[FrozenTrial]) -> Mapping[str, Any]:
        """When a parameter is active in the history, unless it is in all trials of the study."""
        is_always = bool(complete) and all(name in trial.params for trial in complete)
        known = None if is_always or name not in self._known else self._known[name].active_if
        return known or {}

    def _space_of(
        self, distributions: Mapping[str, BaseDistribution], complete: Sequence[FrozenTrial]
    ) -> SearchSpace | None:
        """Returns the search space of some distributions, with the history's conditions."""
        known = self._known
        order = [*known, *(name for name in distributions if name not in known)]
        kept: dict[str, Parameter] = {}
        for name in order:
            distribution = distributions.get(name)
            if distribution is None or distribution.single():
                continue
            condition: dict[str, tuple[Any, ...]] | None = None
            if active_if := self._condition(name, complete):
                condition = {
                    parent: tuple(v for v in values if kept[parent].contains(v))
                    for parent, values in active_if.items()
                    if parent in kept
                }
                if len(condition) < len(active_if) or not all(condition.values()):
                    continue
            if name in known and self._initial[name] == distribution:
                kept[name] = replace(known[name], active_if=condition)  # type: ignore[type-var]
            else:
                kept[name] = parameter_of(name, distribution, condition)
        return SearchSpace(list(kept.values())) if kept else None

    def _outcomes(self, study: Study, trials: Sequence[FrozenTrial]) -> list[Outcome]:
        """Returns objectives and the complete trials' constraints, at first the history's."""
        names = self._outcome or outcome_names(len(study.directions))
        signs = map(sign_of, study.directions)
        outcomes = [Outcome(name, sign) for name, sign in zip(names, signs, strict=True)]
        outcomes = with_logarithms(outcomes, self._log)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        limits = list(dict.fromkeys(constraint_name(k) for t in complete for k in t.constraints))
        if not complete and isinstance(self._history, OptunaHistory):
            limits = self._history.constraints
        return outcomes + [Outcome(name, -1.0, limit=0.0) for name in limits]

    def _old_runs(
        self, study: Study, space: SearchSpace, search_space: Mapping[str, BaseDistribution]
    ) -> DataFrame | None:
        """The table of the history without this study, in its directions and distributions."""
        old = self._old
        if old is None or not isinstance(self._history, OptunaHistory):
            return old  # None: a prior
        old = old[old[TASK] != study.study_name]
        signs = direction_signs("old", self._history.directions, study.directions)
        names = outcome_names(len(signs))
        old = old.assign(**{name: s * old[name] for name, s in zip(names, signs, strict=True)})
        for name in [name for name in space.columns if name in old]:
            if search_space[name] == self._initial.get(name):
                continue
            cells = old[name].map(partial(_converted, search_space[name]), na_action="ignore")
            lost = old[name].notna() & cells.isna()
            if lost.any():
                logger.warning(
                    "%d old values of %r, as %r, do not fit its new distribution %s: %s",
                    lost.sum(),
                    name,
                    plain(old[name][lost].iloc[0]),
                    search_space[name],
                    "the parameter counts as not recorded" if cells.isna().all() else "left out",
                )
            if cells.isna().all():
                old = old.drop(columns=name)
            else:
                old = old.assign(**{name: cells})[~lost].infer_objects()
        spare = [name for name in old if name not in {*space.columns, TASK}]
        for name in space.columns:
            absent = name not in self._history.runs and name not in self._missing
            if absent and (likely := likely_column(name, spare)):
                logger.warning(
                    "Old studies have no parameter %r, but %r: if they are the same, say "
                    "rename={%r: %r}",
                    name,
                    likely,
                    likely,
                    name,
                )
        if len(old) and not any(name in old for name in space.columns):
            logger.warning("Old runs record none of the study's parameters: it goes on without")
            return old[:0]
        return old

    def _values_of_absent(self, space: SearchSpace, old: DataFrame) -> dict[str, Any]:
        """Values of parameters that old runs do not record; ``None`` where they are unknown."""
        if isinstance(self._old, DataFrame) and not isinstance(self._history, OptunaHistory):
            return self._missing
        known = {name: value for name, value in self._missing.items() if name in space.columns}
        return dict.fromkeys(name for name in space.columns if name not in old) | known

    def _curves(self, study: Study) -> CurvePrior | None:
        """Returns the prior of the old studies' learning curves, if there are any."""
        if not isinstance(self._history, OptunaHistory):
            return None
        name, log = study.study_name, bool(self._log)
        learn = partial(self._history.curve_prior, name, log)
        return self._priors.recall(repr((name, log)), learn)


def _converted(distribution: BaseDistribution, cell: Any) -> Any:
    """Returns an old value as a cell of a column of a distribution; ``None`` if there is none."""
    if isinstance(distribution, CategoricalDistribution):
        value = moved(distribution, cell)
        return None if value is None and cell != "None" else label(value)
    number = number_in(cell)
    has_place = number > 0 or not getattr(distribution, "log", False)
    return number if number == number and has_place else None


def _is_active(condition: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    return all(
        parent in params and label(params[parent]) in values for parent, values in condition.items()
    )


def _cells(
    space: SearchSpace, search_space: Mapping[str, BaseDistribution], trial: FrozenTrial
) -> dict[str, Any] | None:
    """A trial's active parameters as a table has them; ``None`` if one lacks or is elsewhere."""
    params = _params(trial)
    cells: dict[str, Any] = {}
    for parameter in space.parameters:
        name = parameter.name
        # Not only its own condition: an inactive parent is not in the cells.
        if not _is_active(parameter.active_if or {}, cells):
            continue
        if name not in params or not has_value(search_space[name], params[name]):
            return None
        cells[name] = label(params[name])
    return cells


def _others(study: Study, trial: FrozenTrial) -> list[FrozenTrial]:
    """Returns the other trials of the study that count, from all brackets under Hyperband."""
    trials = study._storage.get_all_trials(study._study_id, deepcopy=False, states=_STATES)
    return [other for other in trials if other.number != trial.number]


def _complete(study: Study) -> list[FrozenTrial]:
    """Returns the complete trials of a study."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _params(trial: FrozenTrial) -> dict[str, Any]:
    """Returns the parameters of a trial, also ones that it is about to suggest."""
    if trial.state.is_finished():
        return trial.params
    attributes = trial.system_attrs
    return {**attributes.get(_PARAMS, {}), **attributes.get("fixed_params", {}), **trial.params}
