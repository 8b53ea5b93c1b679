"""Plans a study, runs it, stores finished runs on disk, and collects the results."""

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
    """A study, which runs every method on every problem with every seed.

    Args:
        problems: The problems.
        methods: The methods, by name.
        seeds: The seeds.
        budget: The budget of each run.
    """

    problems: Sequence[ProblemSource]
    methods: Mapping[str, Method]
    seeds: Sequence[int]
    budget: Budget


class PlannedRun(NamedTuple):
    """One run of a study, and the file of its result."""

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
    """Runs the missing runs of a study, and collects all runs of its folder.

    Args:
        study: The study.
        folder: The folder of the runs and of `results.parquet`.
        n_jobs: As in `run_missing`.
        progress: As in `run_missing`.
        time_limit: As in `run_missing`.

    Returns:
        The table that `gather` saves.
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
    """Runs the missing runs of a study.

    Every finished run is a file in `folder/runs`. The file name has a hash of the problem, the
    method's name and settings, the seed and the budget. So a killed study can be resumed, a larger
    study runs only new runs, and changed settings never mix with old results. The hash does not
    depend on the code: after a change to a method or to a live function, delete the folder. A
    failed run counts as finished; delete its file to repeat it.

    All methods on one problem with one seed run in sequence in one process, so that shared priors
    are pre-trained once. Processes on other machines need access to the folder.

    Args:
        study: The study.
        folder: The folder of the runs.
        n_jobs: The number of processes; `None` follows `joblib.parallel_config`.
        progress: Whether to show a progress bar.
        time_limit: The number of seconds after which no new problem and seed is started.
    """
    runs = plan(study, folder)
    missing = [planned for planned in runs if not planned.path.exists()]
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    bar = tqdm(total=len(runs), initial=len(runs) - len(missing), disable=not progress, unit="run")
    # Jobs do not wait in a queue: a job that is drawn before the time limit starts at once.
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
    """Collects all finished runs of a folder in a table, and saves it as `results.parquet`.

    Args:
        folder: The folder of the runs.
        problems: The names of the problems that come first, in this order.
        methods: The names of the methods that come first, in this order.

    Returns:
        A table with one row per evaluation and the columns `problem`, `method`, `seed`,
        `evaluation` (from 1), `value` (to be maximized, NaN for a failure), `observed` (with
        noise), `x`, `suggest_seconds`, `evaluate_seconds`, `cpu_seconds`, `best_known`, `worst`,
        `median`, `error` and `versions`. In studies on pools, some rows have `z` and `covered`. A
        run that ended with an error has one more row with the error.

    Raises:
        ValueError: If two runs have the same problem, method and seed.
    """
    records = [json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*.json"))]
    if len({(each["problem"], each["method"], each["seed"]) for each in records}) < len(records):
        raise ValueError(f"{folder} also has runs of other data or settings: choose a new folder.")
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
    """Lists all runs of a study, in the order of the results.

    Args:
        study: The study.
        folder: The folder of the runs.

    Returns:
        The runs, including finished runs.
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
    """Groups the runs by seed and problem, the first seed first."""
    groups: dict[tuple[int, str], list[PlannedRun]] = {}
    order = {seed: number for number, seed in enumerate(dict.fromkeys(run.seed for run in runs))}
    for planned in runs:
        groups.setdefault((order[planned.seed], planned.problem.name), []).append(planned)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def until(time_limit: float | None, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yields jobs until the time limit.

    Args:
        time_limit: The number of seconds from now; `None` for no limit.
        jobs: The jobs.

    Yields:
        The jobs, in the given order.
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
    # If the process is killed, the file is complete or absent.
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
