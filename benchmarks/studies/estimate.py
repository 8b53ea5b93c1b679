"""Estimates of a study's cost, from one run of each method."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from benchmarks.markdown import markdown_table
from benchmarks.studies.study import Study, gather, plan, run_missing

AN_HOUR = 3600.0


def seconds_a_run(results: pd.DataFrame) -> pd.Series:
    """Computes the mean processor time of each method's runs.

    Args:
        results: The table of `study.gather`.

    Returns:
        Seconds by method.
    """
    of_run = results.groupby(["problem", "seed", "method"], sort=False)["cpu_seconds"].sum()
    return of_run.groupby("method", sort=False).mean()


def core_hours(results: pd.DataFrame) -> float:
    """Computes the total processor time of all runs of a table, in hours."""
    return float(results["cpu_seconds"].astype(float).sum()) / AN_HOUR


def estimate(study: Study, folder: Path) -> tuple[str, float]:
    """Runs each method once, and extrapolates the cost from all finished runs.

    Args:
        study: The study.
        folder: The folder of the study, which keeps these runs.

    Returns:
        A markdown table of the methods' costs, and the core-hours of the missing runs.
    """
    pilot = replace(study, problems=study.problems[:1], seeds=study.seeds[:1])
    run_missing(pilot, folder, n_jobs=1)
    seconds = seconds_a_run(gather(folder, methods=list(study.methods)))
    missing = pd.Series(
        [planned.method_name for planned in plan(study, folder) if not planned.path.exists()]
    ).value_counts()
    missing = missing.reindex(seconds.index, fill_value=0)
    hours = seconds * missing / AN_HOUR
    rows = [
        [name, f"{seconds[name]:.1f}", str(missing[name]), f"{hours[name]:.2f}"]
        for name in seconds.index
    ]
    header = ["method", "seconds per run", "missing runs", "core-hours"]
    return markdown_table(header, rows), float(hours.sum())
