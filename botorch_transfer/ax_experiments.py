"""Reads Ax experiments: search space, metrics with directions, trials, learning curves.

:func:`arms_by_fate` sorts arms by their fate: failed, abandoned, succeeded or pending.
:func:`restricted_to` selects the objectives that are optimized before the first outcome. This
module uses private attributes of Ax: ``_experiment`` of ``Client``, and ``_parsed`` of
``Objective``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, cast

from ax.api.client import Client
from ax.core import Arm, ChoiceParameter, Experiment, Objective, SearchSpace
from ax.core.data import MAP_KEY
from ax.core.optimization_config import MultiObjectiveOptimizationConfig, OptimizationConfig
from ax.core.outcome_constraint import OutcomeConstraint
from ax.core.parameter import FixedParameter, RangeParameter
from ax.core.trial_status import TrialStatus
from ax.core.types import ComparisonOp
from ax.exceptions.core import UserInputError
from pandas import DataFrame

from botorch_transfer import search_space as own
from botorch_transfer.curves import Curve
from botorch_transfer.data.measurements import Outcome


def experiment_of(target: Client | Experiment) -> Experiment:
    """Returns the experiment of an Ax client. An experiment is returned unchanged."""
    return target._experiment if isinstance(target, Client) else target


def own_space(search_space: SearchSpace) -> own.SearchSpace:
    """Converts Ax's search space to a search space of this package.

    Args:
        search_space: Ax's search space.

    Returns:
        The search space without derived parameters. Each parent precedes its dependent parameters.
        A fixed parameter becomes a categorical parameter with one value.
    """
    found: list[own.Parameter] = []
    waiting: list[tuple[str, Any]] = [(name, None) for name in search_space.top_level_parameters]
    while waiting:
        name, condition = waiting.pop(0)
        p = search_space.parameters[name]
        if p.is_hierarchical:
            for value, dependents in p.dependents.items():
                waiting += [(each, {name: value}) for each in dependents]
        if isinstance(p, FixedParameter):
            found.append(own.CategoricalParameter(name, [p.value], condition))
        elif isinstance(p, ChoiceParameter) and p.is_ordered and p.is_numeric:
            levels = sorted(cast(list[float], p.values))
            found.append(own.OrdinalParameter(name, levels, p.log_scale, condition))
        elif isinstance(p, ChoiceParameter):
            found.append(own.CategoricalParameter(name, p.values, condition))
        elif isinstance(p, RangeParameter) and p.python_type is int:
            ends = int(p.lower), int(p.upper)
            found.append(own.IntegerParameter(name, *ends, p.log_scale, condition))
        elif isinstance(p, RangeParameter):
            scale: Literal["1-x"] | bool = "1-x" if p.logit_scale else p.log_scale
            found.append(own.FloatParameter(name, p.lower, p.upper, scale, condition))
    return own.SearchSpace(found)


def directions(config: OptimizationConfig | None) -> dict[str, float]:
    """Returns the sign of each metric of the objectives: 1 to maximize, -1 to minimize."""
    weights = [] if config is None else config.objective.metric_weights
    return {metric: 1.0 if weight >= 0 else -1.0 for metric, weight in weights}


def goals_of(experiment: Experiment) -> dict[str, Outcome]:
    """Returns the metrics of an experiment, with their directions and the bounds of constraints.

    The metrics are sorted by name. The sign of a metric is 1 if large outcomes are good, and -1 if
    small outcomes are good. The sign is 0 for a metric without a direction. The sign is also 0 for
    a metric in an objective that is a sum of metrics. Outcomes of a metric with the sign 0 are not
    clipped: without a direction, no outcome is very bad, and clipping one metric of a sum could
    change which run has the best sum.
    """
    config, found = experiment.optimization_config, dict[str, Outcome]()
    if config is not None:
        parts, signs = config.objective._parsed[1], directions(config)
        mapping = config.objective.metric_name_to_signature
        alone = [mapping[part[0][0]] for part in parts if len(part) == 1]
        found = {name: Outcome(name, signs[name]) for name in alone}
        for constraint in config.outcome_constraints:
            sign = -1.0 if constraint.op == ComparisonOp.LEQ else 1.0
            for name in constraint.metric_signatures if not constraint.relative else ():
                found.setdefault(name, Outcome(name, sign, limit=sign * constraint.bound))
    metrics = sorted(metric.signature for metric in experiment.metrics.values())
    return {name: found.get(name, Outcome(name, 0.0)) for name in metrics}


def assumed_values(experiment: Experiment) -> dict[str, Any]:
    """Returns the values that old runs are assumed to have for parameters they do not record.

    The assumed value of a parameter is the value in the experiment's status quo. If the status quo
    lacks the parameter, Ax's backfill value is assumed. A parameter with neither value is left out.
    """
    space, status_quo = experiment.search_space, experiment.status_quo
    known = space.backfill_values() | (status_quo.parameters if status_quo else {})
    return {name: known[name] for name in space.tunable_parameters if name in known}


#: Mapping from the status of a trial to the fate of its arms. Arms of a trial that has not ended
#: are pending. Arms of a trial with another terminal status are left out.
FATES = {
    TrialStatus.FAILED: "failed",
    TrialStatus.ABANDONED: "abandoned",
    TrialStatus.COMPLETED: "succeeded",
}


def arms_by_fate(experiment: Experiment) -> dict[str, list[Arm]]:
    """Groups the arms of an experiment into failed, abandoned, succeeded and pending arms.

    Leaves out arms outside the bounds of the search space.

    Args:
        experiment: The experiment.

    Returns:
        A mapping from ``"failed"``, ``"abandoned"``, ``"succeeded"`` and ``"pending"`` to lists of
        arms. An arm that violates a parameter constraint by a rounding error is not left out. Ax's
        own list of pending arms leaves out such arms. An arm that succeeded in a trial is not in
        the lists of failed and abandoned arms.
    """
    # Check only bounds, because rounded values may violate a constraint slightly.
    bounds = SearchSpace(list(experiment.search_space.parameters.values()))
    found: dict[str, dict[str, Arm]] = {fate: {} for fate in (*FATES.values(), "pending")}
    for trial in experiment.trials.values():
        abandoned = {arm.signature for arm in trial.abandoned_arms}
        for arm in trial.arms:
            if not bounds.check_membership(arm.parameters):
                continue
            otherwise = None if trial.status.is_terminal else "pending"
            fate = "abandoned" if arm.signature in abandoned else FATES.get(trial.status, otherwise)
            if fate is not None:
                found[fate][arm.signature] = arm
    for fate in ("failed", "abandoned"):
        for signature in found["succeeded"]:
            found[fate].pop(signature, None)
    return {fate: list(arms.values()) for fate, arms in found.items()}


def curves_of(experiment: Experiment, metric: str, sign: float) -> dict[int, Curve]:
    """Returns the learning curves of a metric, by trial index.

    Args:
        experiment: The experiment.
        metric: The metric.
        sign: 1 to maximize the metric, -1 to minimize it. Outcomes are multiplied by this sign.

    Returns:
        The curves; empty if the outcomes of the experiment have no steps.
    """
    data = experiment.lookup_data()
    if not data.has_step_column:
        return {}
    rows = data.full_df[data.full_df["metric_signature"] == metric].dropna(subset=[MAP_KEY])
    curves, by_trial = dict[int, Curve](), rows.sort_values(MAP_KEY).groupby("trial_index")
    for index, part in cast(Iterable[tuple[int, DataFrame]], by_trial):
        is_complete = experiment.trials[index].status == TrialStatus.COMPLETED
        steps, values = (part[name].to_numpy(dtype=float) for name in (MAP_KEY, "mean"))
        curves[index] = Curve(steps, sign * values, not is_complete, row=index)
    return curves


def restricted_to(config: OptimizationConfig, metrics: Collection[str]) -> OptimizationConfig:
    """Restricts an optimization config to metrics with old outcomes.

    Keeps an objective, a constraint or an objective threshold if all its metrics have old outcomes.
    Removes each constraint whose bound is relative to the status quo, because the status quo has no
    outcome yet.

    Args:
        config: The optimization config.
        metrics: The metrics with old outcomes.

    Returns:
        The restricted optimization config.

    Raises:
        UserInputError: If no objective is left.
    """
    objective = config.objective
    mapping, parts = objective.metric_name_to_signature, objective._parsed[1]
    known = [part for part in parts if all(mapping[name] in metrics for name, _ in part)]
    if not known:
        lacking = sorted(set(objective.metric_signatures) - set(metrics))
        raise UserInputError(
            f"The objective {objective.expression!r} needs the metrics {lacking}, but the history "
            f"only has the metrics {sorted(metrics)}: rename the metrics of the history, or start "
            "with a trial of your own (Client.attach_trial)."
        )

    def is_known(constraint: OutcomeConstraint) -> bool:
        return set(constraint.metric_signatures) <= set(metrics) and not constraint.relative

    constraints = list(filter(is_known, config.outcome_constraints))
    changes: dict[str, Any] = {"outcome_constraints": constraints}
    if len(known) > 1 and isinstance(config, MultiObjectiveOptimizationConfig):
        changes["objective_thresholds"] = list(filter(is_known, config.objective_thresholds))
    if len(known) == len(parts):
        return config.clone_with_args(**changes)
    # Pass the parsed terms, because Ax's parser may read a name such as "a-b" as an operation.
    kept = Objective(
        expression=", ".join(" + ".join(f"{w!r}*{name}" for name, w in part) for part in known),
        metric_name_to_signature=mapping,
        _parsed=([name for part in known for name, _ in part], known),
    )
    make = OptimizationConfig if len(known) == 1 else config.clone_with_args
    return make(objective=kept, **changes)
