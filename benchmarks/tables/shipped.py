"""The tuning history that the package ships: four search spaces on 18 tasks each."""

from benchmarks.tables.table import Table, make_table
from botorch_transfer.datasets import load_tuning_history, tuning_search_space


def read_shipped(space: str) -> Table:
    """Reads the losses of one search space of the shipped history.

    Args:
        space: `"svm"`, `"gbm"`, `"mlp"` or `"forest"`.

    Returns:
        The table, without failed runs.

    Raises:
        ValueError: If there is no such space.
    """
    frame, own = load_tuning_history(space), tuning_search_space(space)
    return make_table(f"shipped {space}", frame, own, "log_loss", "min")
