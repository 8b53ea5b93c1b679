"""Draws the history of a target task from the shipped runs, for studies with Ax and Optuna."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from botorch_transfer.datasets import load_tuning_history, tuning_search_space

METRIC = "log_loss"


def data_set(task: str) -> str:
    """Returns the data set of a task."""
    return task.split("_")[0]


def without_data_set(frame: pd.DataFrame, task: str) -> pd.DataFrame:
    """Selects the runs on other data sets than the data set of `task`.

    Tasks of one data set share samples: digits 3 against 9 contains images of digits 3 against 8.
    """
    return frame[frame["task"].map(data_set) != data_set(task)]


def draw_old_runs(
    space: str, target: str, seed: int, num_tasks: int, num_runs: int
) -> pd.DataFrame:
    """Draws old tasks, and draws runs of each task.

    Tasks of the target's data set are left out.

    Args:
        space: The search space of the tuning history.
        target: The target task.
        seed: The seed of the draw.
        num_tasks: The number of tasks.
        num_runs: The number of runs per task.

    Returns:
        A table with the columns `"task"`, the parameters and `METRIC`, sorted by task.

    Example:
        >>> draw_old_runs("svm", "digits_3_vs_8", 0, num_tasks=2, num_runs=30).shape
        (60, 4)
    """
    frame = without_data_set(load_tuning_history(space).dropna(subset=METRIC), target)
    names = pd.Series(sorted(frame["task"].unique())).sample(num_tasks, random_state=seed)
    chosen = frame[frame["task"].isin(list(names))]
    shuffled = chosen.sample(frac=1.0, random_state=seed)
    columns = ["task", *tuning_search_space(space).columns, METRIC]
    return shuffled.groupby("task").head(num_runs).sort_values("task")[columns]


def finished(path: Path, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Reads the result of a run from a file; without the file, runs and writes the file.

    The file is renamed after it is complete, so an interruption leaves no incomplete file.

    Args:
        path: The file of the result.
        run: Function that returns the result. Its entry `"values"` is the list of outcomes.

    Returns:
        The result.
    """
    if not path.exists():
        result, part = run(), path.with_suffix(".part")
        part.write_text(json.dumps(result))
        part.rename(path)
        print(path.stem, f"{min(filter(None, result['values'])):.4f}", flush=True)
    return json.loads(path.read_text())
