"""The tuning history that the package ships: four search spaces on 18 tasks each."""

from benchmarks.tables.table import Failed, Goal, Table, make_table
from botorch_transfer.datasets import load_tuning_history, tuning_search_space

GOALS: dict[str, Goal] = {"log_loss": "min", "accuracy": "max", "fit_seconds": "min"}


def read_shipped(space: str, outcome: str = "log_loss", failed: Failed = "drop") -> Table:
    """Reads one search space of the shipped history.

    Args:
        space: `"svm"`, `"gbm"`, `"mlp"` or `"forest"`.
        outcome: `"log_loss"`, `"accuracy"` or `"fit_seconds"`.
        failed: Whether failed runs are dropped, or get the worst outcome of their task.

    Returns:
        The table.

    Raises:
        ValueError: If there is no such space or outcome.
    """
    if outcome not in GOALS:
        raise ValueError(f"There is no outcome {outcome!r}; choose one of {', '.join(GOALS)}.")
    frame = load_tuning_history(space)
    return make_table(
        f"shipped {space}",
        frame,
        tuning_search_space(space),
        outcome,
        GOALS[outcome],
        failed=failed,
    )
