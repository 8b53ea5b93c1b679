"""Real search spaces as domains: six scikit-learn classifiers on PMLB, and three larger tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.tables.shared import read_space
from botorch_transfer.data import Domain

TABLES = ("svm", "rf", "mlp")


def read_domains(folder: Path, max_tasks: int, max_points: int, seed: int = 0) -> list[Domain]:
    """Reads the search spaces.

    Args:
        folder: Where the tables are.
        max_tasks: How many tasks of each to keep, drawn at random.
        max_points: How many different points of each task to keep, drawn at random.
        seed: The seed of the draws.

    Returns:
        A domain for each search space.
    """
    paths = [
        *sorted((folder / "pmlb").glob("*.parquet")),
        *(folder / f"{name}.parquet" for name in TABLES),
    ]
    return [_read_domain(path, max_tasks, max_points, seed) for path in paths]


def _read_domain(path: Path, max_tasks: int, max_points: int, seed: int) -> Domain:
    frame, (space, _) = pd.read_parquet(path), read_space(path)
    sizes = frame.groupby("task")["y"].agg(["size", "nunique"])
    enough = sizes[(sizes["size"] >= 10) & (sizes["nunique"] > 1)].index.to_series()
    chosen = enough.sample(min(max_tasks, len(enough)), random_state=seed)
    kept = [
        rows.sample(min(max_points, len(rows)), random_state=seed)
        for _, rows in frame[frame["task"].isin(chosen)].groupby("task", sort=True)
    ]
    return Domain.from_dataframe(pd.concat(kept), space, outcome="y", task="task", name=path.stem)
