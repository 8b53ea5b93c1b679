"""The rows of the speed table."""

from collections.abc import Callable

from benchmarks.timing import (
    hierarchy_posterior,
    joint_posterior,
    large_history,
    many_tasks,
    pretraining_step,
    source_fit,
    source_growth,
    source_posterior,
    target_step,
)
from benchmarks.timing.measure import Row, Sizes

COMPARISONS: dict[str, Callable[[Sizes], list[Row]]] = {
    "source-fit": source_fit.compare,
    "source-growth": source_growth.compare,
    "source-posterior": source_posterior.compare,
    "target-step": target_step.compare,
    "large-history": large_history.compare,
    "hierarchy-posterior": hierarchy_posterior.compare,
    "joint-posterior": joint_posterior.compare,
    "many-tasks": many_tasks.compare,
    "pretraining-step": pretraining_step.compare,
}
