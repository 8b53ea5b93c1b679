"""What an experiment optimizes, and which of its trials failed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ax.core.arm import Arm
from ax.core.experiment import Experiment
from ax.core.objective import Objective
from ax.core.optimization_config import MultiObjectiveOptimizationConfig, OptimizationConfig
from ax.exceptions.core import UserInputError


def directions(config: OptimizationConfig | None) -> dict[str, float]:
    """Says of an objective's metrics which way they go.

    Args:
        config: What the experiment optimizes, if that is known.

    Returns:
        1 for metrics that are to be large, -1 for those that are to be small, by name.
    """
    weights = [] if config is None else config.objective.metric_weights
    return {metric: 1.0 if weight >= 0 else -1.0 for metric, weight in weights}


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
    """The arms of trials that failed."""
    return [
        arm for trial in experiment.trials.values() if trial.status.is_failed for arm in trial.arms
    ]


def restricted_to(config: OptimizationConfig, metrics: list[str]) -> OptimizationConfig:
    """Leaves out of an optimization what is about other metrics.

    Args:
        config: The optimization.
        metrics: The metrics that something is known of.

    Returns:
        The optimization of these metrics only.

    Raises:
        UserInputError: If nothing is known of the objective.
    """
    objective = config.objective
    weights = [(name, weight) for name, weight in objective.metric_weights if name in metrics]
    complete = len(weights) == len(objective.metric_weights)
    if not weights or (objective.is_scalarized_objective and not complete):
        raise UserInputError(
            f"The history has nothing of the objective {objective.expression!r}, only of "
            f"{metrics}: name its columns, or its old metrics, as the new metrics are named."
        )
    constraints = [
        constraint
        for constraint in config.outcome_constraints
        if all(name in metrics for name in constraint.metric_signatures)
    ]
    if complete:
        return config.clone_with_args(outcome_constraints=constraints)
    kept = Objective(
        expression=", ".join(f"{weight!r}*{name}" for name, weight in weights),
        metric_name_to_signature=objective.metric_name_to_signature,
        _parsed=([name for name, _ in weights], [[pair] for pair in weights]),
    )
    if len(weights) == 1 or not isinstance(config, MultiObjectiveOptimizationConfig):
        return OptimizationConfig(objective=kept, outcome_constraints=constraints)
    thresholds = [
        threshold
        for threshold in config.objective_thresholds
        if all(name in metrics for name in threshold.metric_signatures)
    ]
    return MultiObjectiveOptimizationConfig(
        objective=kept, outcome_constraints=constraints, objective_thresholds=thresholds
    )
