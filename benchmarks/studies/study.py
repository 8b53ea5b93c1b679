"""A study: its plan, its finished runs on disk, its results."""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.studies.methods import Method
from benchmarks.studies.problems import ProblemSource
from benchmarks.studies.run import Budget, Record, run
from botorch_transfer.memo import content_key

logger = logging.getLogger(__name__)

Job = TypeVar("Job")

RESULTS, ABOUT = "results.parquet", "study.json"
SECONDS = ("suggest_seconds", "evaluate_seconds", "cpu_seconds")
OF_EVALUATION = ("observed", "x", "value", *SECONDS)


@dataclass(frozen=True)
class Study:
    """Every method on every problem with every seed.

    Args:
        problems: The problems.
        methods: The methods by name.
        seeds: The seeds.
        budget: What each run may spend.
    """

    problems: Sequence[ProblemSource]
    methods: Mapping[str, Method]
    seeds: Sequence[int]
    budget: Budget


class PlannedRun(NamedTuple):
    """One run and the file that it leaves."""

    problem: ProblemSource
    method_name: str
    method: Method
    seed: int
    budget: Budget
    path: Path


def run_study(
    study: Study,
    folder: Path,
    n_jobs: int | None = None,
    progress: bool = False,
    time_limit: float | None = None,
) -> pd.DataFrame:
    """Runs what is missing of a study and gathers all runs of its folder.

    Args:
        study: The study.
        folder: Where the runs and `results.parquet` are kept.
        n_jobs: As in `run_missing`.
        progress: As in `run_missing`.
        time_limit: As in `run_missing`.

    Returns:
        The table, as `gather` saves it.
    """
    run_missing(study, folder, n_jobs, progress, time_limit)
    return gather(folder, [problem.name for problem in study.problems], list(study.methods))


def run_missing(
    study: Study,
    folder: Path,
    n_jobs: int | None = None,
    progress: bool = False,
    time_limit: float | None = None,
) -> None:
    """Runs what is missing of a study.

    Every finished run is a file in `folder/runs`, named after the content of what it depends on:
    problem, method's name and settings, seed and budget. So a study that was killed goes on where
    it stopped, a study that grows runs only what is new, and changed settings never mix with old
    results. Only the code itself is not part of the name: after a change to a method or to a live
    function, delete the folder. A run that failed is finished, too; delete its file to try again.

    All methods on one problem with one seed run one after another in one process, so that what
    they pre-train alike is pre-trained once. Processes on other machines must see the folder.

    Args:
        study: The study.
        folder: Where the runs are kept.
        n_jobs: The number of processes; `None` follows `joblib.parallel_config`.
        progress: Whether to show a progress bar.
        time_limit: The number of seconds after which no problem and seed is begun any more.
    """
    runs = plan(study, folder)
    missing = [planned for planned in runs if not planned.path.exists()]
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    bar = tqdm(total=len(runs), initial=len(runs) - len(missing), disable=not progress, unit="run")
    # Nothing waits in a queue: what is drawn from `jobs` before the time is up begins before it.
    parallel = Parallel(
        n_jobs=n_jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs"
    )
    jobs = until(time_limit, _groups(missing))
    with bar:
        for outcomes in parallel(delayed(_run_and_save)(job) for job in jobs):
            bar.update(len(outcomes))
            for name, error in outcomes:
                if error is not None:
                    logger.warning("%s failed: %s", name, error.splitlines()[-1])


def gather(folder: Path, problems: Sequence[str] = (), methods: Sequence[str] = ()) -> pd.DataFrame:
    """Makes a table of all finished runs of a folder, and saves it there as `results.parquet`.

    Args:
        folder: Where the runs are kept.
        problems: Problems that come first, in this order.
        methods: Methods that come first, in this order.

    Returns:
        One row an evaluation: `problem`, `method`, `seed`, `evaluation` (from 1), `value` (to be
        maximized, NaN if it failed), `observed` (with noise), `x`, `suggest_seconds`,
        `evaluate_seconds`, `cpu_seconds`, `best_known`, `worst`, `median`, `error` and `versions`;
        in some rows of studies on pools `z` and `covered`. A run that an error ended has one more
        row with the error.

    Raises:
        ValueError: If two runs have the same problem, method and seed.
    """
    records = [json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*.json"))]
    if len({(each["problem"], each["method"], each["seed"]) for each in records}) < len(records):
        raise ValueError(f"{folder} has runs of other data or settings, too: take a new folder.")
    of_problem = {name: number for number, name in enumerate(problems)}
    of_method = {name: number for number, name in enumerate(methods)}
    records.sort(
        key=lambda record: (
            of_problem.get(record["problem"], len(problems)),
            record["problem"],
            record["seed"],
            of_method.get(record["method"], len(methods)),
        )
    )
    table = pd.DataFrame([row for record in records for row in _rows(record)])
    unfinished = (folder / RESULTS).with_suffix(".unfinished")
    table.to_parquet(unfinished)
    unfinished.replace(folder / RESULTS)
    return table


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
                settings = getattr(method, "settings", "")
                key = content_key(keys[problem.name], name, seed, study.budget, settings)
                path = folder / "runs" / f"{_slug(problem.name)}-{_slug(name)}-{seed}-{key}.json"
                runs.append(PlannedRun(problem, name, method, seed, study.budget, path))
    return runs


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _groups(runs: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
    """Runs on the same problem with the same seed; the first seeds first."""
    groups: dict[tuple[int, str], list[PlannedRun]] = {}
    order = {seed: number for number, seed in enumerate(dict.fromkeys(run.seed for run in runs))}
    for planned in runs:
        groups.setdefault((order[planned.seed], planned.problem.name), []).append(planned)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def until(time_limit: float | None, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yields jobs as long as there is time to begin one.

    Args:
        time_limit: The number of seconds from now; `None` for no limit.
        jobs: The jobs.

    Yields:
        The jobs in their order.
    """
    end = None if time_limit is None else time.monotonic() + time_limit
    for job in jobs:
        if end is not None and time.monotonic() >= end:
            return
        yield job


def _run_and_save(group: Sequence[PlannedRun]) -> list[tuple[str, str | None]]:
    return [_run_and_save_one(planned) for planned in group]


def _run_and_save_one(planned: PlannedRun) -> tuple[str, str | None]:
    record = run(planned.problem, planned.method_name, planned.method, planned.seed, planned.budget)
    # Complete or not there at all, wherever a kill strikes.
    unfinished = planned.path.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.write_text(json.dumps(record), encoding="utf-8")
    unfinished.replace(planned.path)
    name = f"{planned.method_name} on {planned.problem.name}, seed {planned.seed},"
    return name, record["error"]


def _rows(record: Record) -> list[Record]:
    about = ("problem", "method", "seed", "best_known", "worst", "median", "versions")
    of_run = {name: record[name] for name in about}
    rows = [
        {**of_run, "evaluation": number, **evaluation, "error": None}
        for number, evaluation in enumerate(record["evaluations"], start=1)
    ]
    if record["error"] is not None:
        nothing = dict.fromkeys(OF_EVALUATION)
        last = {"evaluation": len(rows) + 1, **nothing, "error": record["error"]}
        rows.append({**of_run, **last})
    return rows
