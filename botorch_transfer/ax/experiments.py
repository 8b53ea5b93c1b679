"""What Ax's clients keep to themselves.

What an experiment optimizes, and which of its trials came to nothing.

What is optimized as long as only some of the metrics are known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ax.api.client import Client
from ax.core.arm import Arm
from ax.core.base_trial import BaseTrial
from ax.core.batch_trial import BatchTrial
from ax.core.experiment import Experiment
from ax.core.objective import Objective
from ax.core.observation import ObservationFeatures
from ax.core.optimization_config import MultiObjectiveOptimizationConfig, OptimizationConfig
from ax.core.outcome_constraint import OutcomeConstraint
from ax.core.parameter import DerivedParameter
from ax.core.search_space import SearchSpace
from ax.exceptions.core import UserInputError


def experiment_of(target: Client | Experiment) -> Experiment:
    """The experiment that a client has, or the experiment itself."""
    return target._experiment if isinstance(target, Client) else target


def search_space_of(
    space: Client | Experiment | SearchSpace | Sequence[Any],
) -> SearchSpace:
    """The search space of whatever says it."""
    if isinstance(space, SearchSpace):
        return space
    if not isinstance(space, Client | Experiment):
        configured = Client()
        configured.configure_experiment(parameters=space)
        space = configured
    return experiment_of(space).search_space


def save_again(client: Client) -> None:
    """Writes a client's experiment to its database, if it has one."""
    client._save_experiment_to_db_if_possible(experiment=client._experiment)


def directions(config: OptimizationConfig | None) -> dict[str, float]:
    """Says of an objective's metrics which way they go.

    Args:
        config: What the experiment optimizes, if that is known.

    Returns:
        1 for metrics that are to be large, -1 for those that are to be small, by name.
    """
    weights = [] if config is None else config.objective.metric_weights
    return {metric: 1.0 if weight >= 0 else -1.0 for metric, weight in weights}


def metrics_of(experiment: Experiment) -> list[str]:
    """The names of an experiment's metrics, sorted."""
    return sorted(metric.signature for metric in experiment.metrics.values())


def refuse_other_metrics(known: Collection[str], metrics: Sequence[str]) -> None:
    """Refuses old runs or priors that speak of no metric of the experiment.

    Args:
        known: The metrics that they speak of.
        metrics: Those of the experiment.

    Raises:
        UserInputError: If there is none in common.
    """
    if not set(known) & set(metrics):
        raise UserInputError(
            f"The experiment has the metrics {list(metrics)}, and the history or prior speaks of "
            f"{sorted(known) or 'none of them'}: name them alike."
        )


def failed_arms(experiment: Experiment) -> list[Arm]:
    """The arms that failed or were abandoned, and that nothing came of in another trial.

    Arms out of the search space's bounds are left out: they would not be suggested anyway.

    Args:
        experiment: The experiment.

    Returns:
        The arms, none of them twice.
    """
    trials = experiment.trials.values()
    done = {arm.signature for t in trials if t.status.is_completed for arm in _used(t)}
    arms = [arm for t in trials if t.status.is_failed or t.status.is_abandoned for arm in t.arms]
    arms += [arm for t in trials for arm in _abandoned(t)]
    unusable = {arm.signature: arm for arm in arms if arm.signature not in done}
    return [arm for arm in unusable.values() if _in_bounds(experiment, arm)]


def awaited_arms(experiment: Experiment) -> list[Arm]:
    """The arms of trials that are still to be run, or run, within the bounds of the search space.

    Ax's own list leaves out those that violate a constraint, be it by rounding.
    """
    trials = [t for t in experiment.trials.values() if not t.status.is_terminal]
    return [arm for trial in trials for arm in _used(trial) if _in_bounds(experiment, arm)]


def _abandoned(trial: BaseTrial) -> list[Arm]:
    """The arms of a batch that were abandoned by themselves."""
    return list(trial.abandoned_arms) if isinstance(trial, BatchTrial) else []


def _used(trial: BaseTrial) -> list[Arm]:
    """The arms of a trial that were not abandoned by themselves."""
    abandoned = {arm.signature for arm in _abandoned(trial)}
    return [arm for arm in trial.arms if arm.signature not in abandoned]


def _in_bounds(experiment: Experiment, arm: Arm) -> bool:
    """Whether an arm's parameters fit; Ax fills in those that it may lack, and derived ones."""
    space = experiment.search_space
    tunable, filled = space.tunable_parameters, space.backfill_values()
    lacking = [name for name in tunable if name not in arm.parameters and name not in filled]
    if lacking and not space.is_hierarchical:
        return False
    return all(
        parameter.validate(arm.parameters[name])
        for name, parameter in space.parameters.items()
        if name in arm.parameters and not isinstance(parameter, DerivedParameter)
    )


def without_abandoned(
    experiment: Experiment, pending: dict[str, list[ObservationFeatures]] | None
) -> dict[str, list[ObservationFeatures]]:
    """Leaves out of what is pending those trials whose outcomes will never come.

    Args:
        experiment: The experiment.
        pending: Pending arms, by metric; Ax counts abandoned ones among them.

    Returns:
        Those that are still awaited.
    """
    abandoned = {t.index for t in experiment.trials.values() if t.status.is_abandoned}
    arms = {
        (t.index, Arm(arm.parameters).signature)
        for t in experiment.trials.values()
        for arm in _abandoned(t)
    }

    def is_awaited(features: ObservationFeatures) -> bool:
        arm = (features.trial_index, Arm(features.parameters).signature)
        return features.trial_index not in abandoned and arm not in arms

    return {
        name: kept
        for name, features in (pending or {}).items()
        if (kept := list(filter(is_awaited, features)))
    }


def restricted_to(config: OptimizationConfig, metrics: Collection[str]) -> OptimizationConfig:
    """Leaves out of an optimization what is about other metrics.

    Constraints and thresholds relative to the status quo, which has no outcome yet, are left out,
    too. Of several objectives, those are kept that are known; a sum of metrics is known if all of
    them are.

    Args:
        config: The optimization.
        metrics: The metrics that something is known of.

    Returns:
        The optimization of these metrics only.

    Raises:
        UserInputError: If no objective is known.
    """
    objective = config.objective
    mapping, parts = objective.metric_name_to_signature, objective._parsed[1]
    known = [part for part in parts if all(mapping[name] in metrics for name, _ in part)]
    if not known:
        lacking = sorted(set(objective.metric_signatures) - set(metrics))
        raise UserInputError(
            f"The history has no {lacking} of the objective {objective.expression!r}, only "
            f"{sorted(metrics)}: name its columns, or its old metrics, as the new metrics are "
            "named, or begin by a trial of your own (Client.attach_trial)."
        )

    def is_known(constraint: OutcomeConstraint) -> bool:
        # What is relative to the status quo waits for its outcome.
        return set(constraint.metric_signatures) <= set(metrics) and not constraint.relative

    changes: dict[str, Any] = {
        "outcome_constraints": list(filter(is_known, config.outcome_constraints))
    }
    if len(known) > 1 and isinstance(config, MultiObjectiveOptimizationConfig):
        changes["objective_thresholds"] = list(filter(is_known, config.objective_thresholds))
    if len(known) == len(parts):
        return config.clone_with_args(**changes)
    # Not parsed again, because names may look like operators.
    kept = Objective(
        expression=", ".join(" + ".join(f"{w!r}*{name}" for name, w in part) for part in known),
        metric_name_to_signature=mapping,
        _parsed=([name for part in known for name, _ in part], known),
    )
    if len(known) == 1:
        return OptimizationConfig(objective=kept, **changes)
    return config.clone_with_args(objective=kept, **changes)
