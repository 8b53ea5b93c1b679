"""A study: its plan, its finished runs on disk, its results."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.studies.methods import Method
from benchmarks.studies.problems import Problem
from benchmarks.studies.run import Budget, Record, run
from botorch_transfer.pretraining.memo import content_key

logger = logging.getLogger(__name__)

RESULTS = "results.parquet"


@dataclass(frozen=True)
class Study:
    """Every method on every problem with every seed.

    Args:
        problems: The problems.
        methods: The methods by name.
        seeds: The seeds.
        budget: What each run may spend.
    """

    problems: Sequence[Problem]
    methods: Mapping[str, Method]
    seeds: Sequence[int]
    budget: Budget


class PlannedRun(NamedTuple):
    """One run and the file that it leaves."""

    problem: Problem
    method_name: str
    method: Method
    seed: int
    budget: Budget
    path: Path


def run_study(
    study: Study, folder: Path, n_jobs: int | None = None, progress: bool = False
) -> pd.DataFrame:
    """Runs what is missing of a study and gathers all of it.

    Every finished run is a file in `folder/runs`, named after the content of what it depends on:
    problem, method's name, seed and budget. So a study that was killed goes on where it stopped, a
    study that grows runs only what is new, and changed settings never mix with old results. Only
    the code itself is not part of the name: after a change to a method or to a live function,
    delete the folder. A run that failed is finished, too; delete its file to try again.

    Args:
        study: The study.
        folder: Where the runs and `results.parquet` are kept.
        n_jobs: The number of runs at the same time; `None` follows `joblib.parallel_config`.
        progress: Whether to show a progress bar.

    Returns:
        The table in `results.parquet`, one row an evaluation: `problem`, `method`, `seed`,
        `evaluation` (from 1), `value` (to be maximized, NaN if it failed), `x`, `suggest_seconds`,
        `evaluate_seconds`, `error` and `versions`. A run that an error ended has one more row with
        the error.
    """
    runs = plan(study, folder)
    missing = [planned for planned in runs if not planned.path.exists()]
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    bar = tqdm(total=len(runs), initial=len(runs) - len(missing), disable=not progress, unit="run")
    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1)
    with bar:
        for name, error in parallel(delayed(_run_and_save)(planned) for planned in missing):
            bar.update()
            if error is not None:
                logger.warning("%s failed: %s", name, error.splitlines()[-1])
    return _gather(runs, folder / RESULTS)


def plan(study: Study, folder: Path) -> list[PlannedRun]:
    """Lists all runs of a study, in the order of its results.

    Args:
        study: The study.
        folder: Where its runs are kept.

    Returns:
        The runs, finished ones included.
    """
    keys = {problem.name: problem.key() for problem in study.problems}
    if len(keys) < len(study.problems):
        raise ValueError("Two problems of the study have the same name: rename one.")
    runs = []
    for problem in study.problems:
        for seed in study.seeds:
            for name, method in study.methods.items():
                key = content_key(keys[problem.name], name, seed, study.budget)
                path = folder / "runs" / f"{_slug(problem.name)}-{_slug(name)}-{seed}-{key}.json"
                runs.append(PlannedRun(problem, name, method, seed, study.budget, path))
    return runs


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _run_and_save(planned: PlannedRun) -> tuple[str, str | None]:
    record = run(planned.problem, planned.method_name, planned.method, planned.seed, planned.budget)
    # Complete or not there at all, wherever a kill strikes.
    unfinished = planned.path.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.write_text(json.dumps(record), encoding="utf-8")
    unfinished.replace(planned.path)
    name = f"{planned.method_name} on {planned.problem.name}, seed {planned.seed},"
    return name, record["error"]


def _gather(runs: Sequence[PlannedRun], path: Path) -> pd.DataFrame:
    records = [json.loads(planned.path.read_text(encoding="utf-8")) for planned in runs]
    table = pd.DataFrame([row for record in records for row in _rows(record)])
    unfinished = path.with_suffix(".unfinished")
    table.to_parquet(unfinished)
    unfinished.replace(path)
    return table


def _rows(record: Record) -> list[Record]:
    of_run = {name: record[name] for name in ("problem", "method", "seed")}
    rows = [
        {**of_run, "evaluation": number, **evaluation, "error": None}
        for number, evaluation in enumerate(record["evaluations"], start=1)
    ]
    if record["error"] is not None:
        failed = {"x": None, "value": None, "suggest_seconds": None, "evaluate_seconds": None}
        rows.append({**of_run, "evaluation": len(rows) + 1, **failed, "error": record["error"]})
    return [{**row, "versions": record["versions"]} for row in rows]
