"""Leave-one-out on real tables: a task is the target, some of the others are the history."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pandas as pd
import torch

from benchmarks.adversarial.histories import NUM_TASKS, POINTS_A_TASK
from benchmarks.studies.problems import TableProblem, subsample_history
from botorch_transfer import SearchSpace, from_dataframe
from botorch_transfer.data import as_datasets

MIN_POINTS = 100


def table_problems(name: str, folder: Path, num_targets: int) -> list[TableProblem]:
    """Makes problems of a table of past runs.

    Args:
        name: The table's name.
        folder: Where ``NAME.parquet`` and ``NAME.space.json`` are.
        num_targets: The number of targets, evenly spread over the tasks with enough points.

    Returns:
        One problem a target. Its history are a few points of ten other tasks, drawn at random.
    """
    frame = pd.read_parquet(folder / f"{name}.parquet")
    path = folder / f"{name}.space.json"
    space, goal = SearchSpace.from_json(path), json.loads(path.read_text())["goal"]
    tasks = from_dataframe(frame, space, "y", "task", goal=goal)
    tasks = {
        task: data for task, data in tasks.items() if len(as_datasets([data])[0].Y) >= MIN_POINTS
    }
    names = list(tasks)
    chosen = names[:: max(len(names) // num_targets, 1)][:num_targets]
    return [_problem(name, tasks, target) for target in chosen]


def _problem(table: str, tasks: dict, target: str) -> TableProblem:
    seed = zlib.crc32(f"{table}/{target}".encode())
    generator = torch.Generator().manual_seed(seed)
    others = [task for task in tasks if task != target]
    drawn = [others[i] for i in torch.randperm(len(others), generator=generator)[:NUM_TASKS]]
    history = subsample_history({task: tasks[task] for task in drawn}, POINTS_A_TASK, seed)
    (data,) = as_datasets([tasks[target]])
    # A point that was evaluated twice counts with its first value.
    rows = {tuple(x): row for row, x in reversed(list(enumerate(data.X.tolist())))}
    kept = sorted(rows.values())
    return TableProblem(f"{table} {target}", data.X[kept], data.Y[kept], history)
