"""Leave-one-out on real tables: a task is the target, some of the others are the history."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.adversarial.histories import NUM_TASKS, POINTS_A_TASK
from benchmarks.studies.problems import TableProblem
from benchmarks.tables import Table, Treatment, read_shared

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
    table = read_shared(name, folder, Treatment()).at_least(MIN_POINTS)
    names = list(table.tasks)
    chosen = names[:: max(len(names) // num_targets, 1)][:num_targets]
    return [_problem(table, target) for target in chosen]


def _problem(table: Table, target: str) -> TableProblem:
    seed = zlib.crc32(f"{table.name}/{target}".encode())
    generator = torch.Generator().manual_seed(seed)
    others = [task for task in table.tasks if task != target]
    drawn = [others[i] for i in torch.randperm(len(others), generator=generator)[:NUM_TASKS]]
    problem = table.problem(target, sources=drawn).subsample(POINTS_A_TASK, seed)
    return replace(problem, name=f"{table.name} {target}")
