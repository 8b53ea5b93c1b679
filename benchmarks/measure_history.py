"""Measures the tuning history that ships with the package.

    python -m benchmarks.measure_history --out FILE --jobs N

Each finished run is appended to `FILE.partial.jsonl`. An interrupted or killed measurement
continues from this file. Except for the times, an interruption does not change the table.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.history_spaces import SPACES, evaluate, sample_configs
from benchmarks.history_tasks import TASKS
from botorch_transfer import IntegerParameter, OrdinalParameter
from botorch_transfer.datasets import OUTCOMES, tuning_search_space

CONFIGS = 150
GZIP = {"method": "gzip", "mtime": 0, "compresslevel": 9}  # mtime: same rows, same bytes

Run = tuple[str, str, dict[str, Any]]
Result = dict[str, float]


def plan(spaces: Sequence[str], tasks: Sequence[str], configs: int) -> list[Run]:
    """Lists all runs as (space, task, configuration), in the order of the table's rows."""
    return [(s, t, c) for s in spaces for t in tasks for c in sample_configs(s, t, configs)]


def measure(
    out: Path,
    spaces: Sequence[str] = SPACES,
    tasks: Sequence[str] = TASKS,
    configs: int = CONFIGS,
    jobs: int = 1,
    progress: bool = False,
) -> pd.DataFrame:
    """Measures the runs that are not finished yet, then writes the table.

    Args:
        out: The path of the table, a `.csv.gz`. Finished runs are stored in `<out>.partial.jsonl`.
        spaces: Names of search spaces.
        tasks: Names of tasks.
        configs: The number of configurations per search space and task.
        jobs: The number of processes.
        progress: Whether to show a progress bar.

    Returns:
        The table.
    """
    partial = out.with_name(out.name + ".partial.jsonl")
    runs = plan(spaces, tasks, configs)
    results = _read_finished(partial)
    missing = [run for run in runs if _key(run) not in results]
    bar = tqdm(total=len(runs), initial=len(runs) - len(missing), disable=not progress, unit="run")
    with partial.open("a") as file, bar:
        for run, result in _results(missing, jobs):
            file.write(json.dumps([_key(run), result]) + "\n")
            file.flush()
            results[_key(run)] = result
            bar.update()
    table = _table(runs, results)
    table.to_csv(out, index=False, compression=GZIP)
    return table


def _key(run: Run) -> str:
    return json.dumps(run)


def _results(runs: Sequence[Run], jobs: int) -> Iterator[tuple[Run, Result]]:
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    return parallel(delayed(_measure_one)(run) for run in runs)


def _measure_one(run: Run) -> tuple[Run, Result]:
    result = evaluate(*run)
    return run, {
        "log_loss": float(f"{result['log_loss']:.5g}"),
        "accuracy": float(f"{result['accuracy']:.4g}"),
        "fit_seconds": float(f"{result['seconds']:.3g}"),
    }


def _read_finished(partial: Path) -> dict[str, Result]:
    """Reads finished runs, and removes an incomplete last line from the file."""
    if not partial.exists():
        return {}
    text = partial.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        partial.write_text(whole)
    return dict(json.loads(line) for line in whole.splitlines())


def _table(runs: Sequence[Run], results: dict[str, Result]) -> pd.DataFrame:
    """Tabulates one run per row: space, task, all parameters (empty if inactive) and outcomes."""
    rows = [{"space": s, "task": t, **c, **results[_key((s, t, c))]} for s, t, c in runs]
    spaces = dict.fromkeys(space for space, _, _ in runs)
    parameters = [p for space in spaces for p in tuning_search_space(space).parameters]
    names = dict.fromkeys(p.name for p in parameters)
    whole = {
        p.name: "Int64" for p in parameters if isinstance(p, IntegerParameter | OrdinalParameter)
    }
    return pd.DataFrame(rows, columns=["space", "task", *names, *OUTCOMES]).astype(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="table to write, .csv.gz")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--configs", type=int, default=CONFIGS, help="configurations per task")
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=SPACES)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    table = measure(**vars(args), progress=True)
    print(f"{len(table)} runs, {table['log_loss'].isna().sum()} failed, written to {args.out}")


if __name__ == "__main__":
    main()
