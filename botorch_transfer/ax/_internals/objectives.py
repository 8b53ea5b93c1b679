"""What is optimized as long as only some of the metrics are known."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ax.core.objective import Objective
from ax.core.optimization_config import MultiObjectiveOptimizationConfig, OptimizationConfig
from ax.core.outcome_constraint import OutcomeConstraint
from ax.exceptions.core import UserInputError


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
