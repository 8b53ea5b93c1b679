"""Measures how much bad cells in the tables cost a user of `suggest`.

    python -m benchmarks.planted_study --data FOLDER --out DIR
    python -m benchmarks.planted_study --out DIR --report

A planted run has a share of its outcomes replaced by a value such as 1e30. A clean run has the same
rows without planted cells. `DIR/runs.csv` has a line a run, and the same command resumes a study.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.markdown import markdown_table
from benchmarks.studies.problems import MIN_RANGE, named_seed
from benchmarks.studies.run import isolated
from benchmarks.studies.statistics import of_cases, resampled_means
from benchmarks.studies.study import until
from benchmarks.studies.suites import targets
from benchmarks.tables import Table, Treatment, read_shared, read_shipped
from benchmarks.tables.table import Goal
from botorch_transfer import suggest

TABLES: Mapping[str, tuple[str, Goal]] = {
    "rnn_optimizer": ("y", "min"),
    "gcc": ("y", "min"),
    "lingeling": ("y", "min"),
    "rf": ("y", "max"),
    "shipped svm": ("log_loss", "min"),
    "shipped gbm": ("log_loss", "min"),
}
"""The outcome and the goal of each table."""
SHARES, VALUES = (0.01, 0.03, 0.1), (1e3, 1e6, 1e30, -999.0)
NUM_TASKS, NUM_ROWS, POOL_SIZE, MIN_ROWS, EVALUATIONS = 8, 30, 200, 50, 5
RUNS = "runs.csv"
REGRETS = [f"regret_{number}" for number in range(1, EVALUATIONS + 1)]


class Run(NamedTuple):
    """A run; share and value are zero without planted cells."""

    table: str
    target: str
    seed: int
    share: float
    value: float


@cache
def read(name: str, folder: Path) -> Table:
    """Reads a table without its small tasks; outcomes stay as they were recorded."""
    own = name.removeprefix("shipped ")
    table = read_shared(name, folder, Treatment()) if own == name else read_shipped(own)
    return table.at_least(MIN_ROWS)


def draw(table: Table, run: Run) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Draws a run's history, its pool, and which evaluations have a planted outcome.

    All draws follow from table, target and seed. A larger share plants the cells of a smaller one,
    and more.
    """
    (outcome, _), columns = TABLES[run.table], table.space.columns
    frame = table.frame[["task", *columns, outcome]].astype({"task": str, outcome: float})
    groups = frame.drop_duplicates(["task", *columns]).groupby("task")
    tasks = {str(name): rows for name, rows in groups}
    generator = np.random.default_rng(named_seed(f"{run.table}: {run.target}", run.seed, 0))
    pool = tasks.pop(run.target).drop(columns="task")
    pool = pool.sample(min(len(pool), POOL_SIZE), random_state=generator)
    chosen = [tasks[name] for name in generator.permutation(sorted(tasks))[:NUM_TASKS]]
    parts = [rows.sample(min(len(rows), NUM_ROWS), random_state=generator) for rows in chosen]
    history = pd.concat(parts, ignore_index=True)
    cells = generator.permutation(len(history))[: round(run.share * len(history))]
    history.loc[cells, outcome] = run.value
    return history, pool, generator.random(EVALUATIONS) < run.share


def replay(run: Run, table: Table) -> dict[str, Any]:
    """Chooses rows of the target one after another; an exception ends the run and is recorded."""
    (outcome, goal), (history, pool, planted) = TABLES[run.table], draw(table, run)
    options: dict[str, Any] = {"cache": "off", "progress": False, "seed": run.seed}
    truth, taken = pool[outcome] if goal == "max" else -pool[outcome], list[Any]()
    best, found = truth.max(), {**run._asdict(), "error": ""}
    unit = max(best - truth.median(), MIN_RANGE)
    for number, name in enumerate(REGRETS):
        own, candidates = pool.loc[taken], pool.drop(columns=outcome)
        own[outcome] = own[outcome].mask(planted[:number], run.value)
        try:
            with isolated():
                row = suggest(
                    table.space, history, own, outcome, goal, candidates=candidates, **options
                )
        except Exception as raised:
            return {**found, "error": " ".join(f"{type(raised).__name__}: {raised}".split())}
        taken.append(row.index[0])
        found[name] = min((best - truth[taken].max()) / unit, 1.0)
    return found


def plan(number: int, folder: Path) -> list[Run]:
    """Lists the runs on some targets and seeds of each table, all tables in turn."""
    runs, variants = list[Run](), [(0.0, 0.0), *product(SHARES, VALUES)]
    for case, table in product(range(number), TABLES):
        names = targets(list(read(table, folder).tasks))
        seed, target = divmod(case, len(names))
        runs += [Run(table, names[target], seed, *variant) for variant in variants]
    return runs


def run_missing(runs: Sequence[Run], folder: Path, path: Path, jobs: int, minutes: float) -> None:
    """Appends the missing runs to a file; begins none after some minutes."""
    rows = finished(path)[[*Run._fields]].itertuples(index=False) if path.exists() else ()
    done = {Run(*row) for row in rows}
    missing = [run for run in runs if run not in done]
    parallel = Parallel(jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
    begun = until(60 * minutes, missing)
    results = parallel(delayed(replay)(run, read(run.table, folder)) for run in begun)
    for found in tqdm(results, total=len(runs), initial=len(runs) - len(missing), unit="run"):
        line = pd.DataFrame([found], columns=[*Run._fields, *REGRETS, "error"])
        line.to_csv(path, mode="a", header=not path.exists(), index=False)


def finished(path: Path) -> pd.DataFrame:
    """Reads the finished runs."""
    return pd.read_csv(path, dtype={"target": str})


def report(found: pd.DataFrame) -> str:
    """Compares planted runs with clean ones; 90 % intervals of a bootstrap over targets and seeds.

    A run that an exception ended keeps its last regret, or has regret 1 if it has none.
    """
    regret = found[REGRETS].ffill(axis=1).fillna(1.0).mean(axis=1)
    problem = found["table"] + ": " + found["target"]
    found = found.assign(problem=problem, regret=regret, raised=found["error"].notna())
    variants = dict(list(found.set_index(["problem", "seed"]).groupby(["share", "value"])))
    clean, rows = variants.pop((0.0, 0.0)), []
    for (share, value), planted in variants.items():
        pairs = clean.merge(planted, on=["problem", "seed"], suffixes=("_clean", ""))
        regrets = pairs[["regret_clean", "regret"]]
        before, after = of_cases(regrets).mean()
        drawn = resampled_means(regrets, np.random.default_rng(0))
        low, high = np.quantile(drawn["regret"] - drawn["regret_clean"], [0.05, 0.95])
        rows.append([f"{share:.0%}", f"{value:g}", str(len(pairs)), f"{before:.3f}"])
        rows[-1] += [f"{after:.3f}", f"{after - before:+.3f} [{low:+.3f}, {high:+.3f}]"]
        rows[-1].append(f"{pairs['raised'].sum()} ({pairs['raised_clean'].sum()})")
    header = ["share", "value", "pairs", "clean", "planted", "difference", "exceptions (clean)"]
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: The process's own by default.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder with the tables")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--runs", type=int, default=4, help="targets and seeds of each table")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--time-limit", type=float, default=np.inf, help="minutes; no run later")
    parser.add_argument("--report", action="store_true", help="only print the report")
    options = parser.parse_args(arguments)
    path = options.out / RUNS
    if not options.report:
        if options.data is None:
            parser.error("The study needs the tables: add --data FOLDER.")
        options.out.mkdir(parents=True, exist_ok=True)
        runs = plan(options.runs, options.data)
        run_missing(runs, options.data, path, options.jobs, options.time_limit)
    print(report(finished(path)))


if __name__ == "__main__":
    main()
