"""Runs or reports the development studies: `python -m benchmarks.studies.development run`.

    python -m benchmarks.studies.development run --data FOLDER --suites development few_sources
    python -m benchmarks.studies.development report

A study that was interrupted goes on where it stopped by the same command; more suites, methods,
targets or seeds only add to it. Runs of a method whose code has changed are to be deleted from the
folder's tables, or made in another folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.development.methods import METHODS
from benchmarks.studies.development.report import write_report
from benchmarks.studies.development.results import finished, plan, run_missing
from benchmarks.studies.development.suites import GROUPS, MAX_TARGETS, SUITES, Suite
from benchmarks.studies.estimate import AN_HOUR
from benchmarks.studies.workers import workers

OUT = Path("out/development")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    options = _parser().parse_args(arguments)
    options.command(options)


def run(options: argparse.Namespace) -> None:
    """Runs what is missing."""
    chosen = suites(options.suites)
    wanted = plan(chosen, options.methods, options.data, options.targets, options.seeds)
    limit = None if options.time_limit is None else 60 * options.time_limit
    with workers(n_jobs=options.jobs):
        failed = run_missing(wanted, options.data, options.out, not options.quiet, limit)
    runs = finished(options.out)
    hours = runs["seconds"].sum() / AN_HOUR
    print(f"{hours:.2f} core-hours in {options.out}; {len(failed)} runs failed")


def suites(names: Sequence[str]) -> list[Suite]:
    """Looks suites up by their names, or by those of groups."""
    chosen = [GROUPS[name] if name in GROUPS else (SUITES[name],) for name in names]
    return list(dict.fromkeys(suite for group in chosen for suite in group))


def report(options: argparse.Namespace) -> None:
    """Prints the report."""
    print(write_report(options.out, options.methods))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.development",
        description=(__doc__ or "").partition("\n")[0],
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="run what is missing")
    running.set_defaults(command=run)
    running.add_argument("--data", type=Path, required=True, help="the folder with the tables")
    running.add_argument("--out", type=Path, default=OUT, help=f"by default {OUT}")
    running.add_argument(
        "--suites",
        nargs="+",
        default=["development"],
        choices=[*GROUPS, *SUITES],
        metavar="SUITE",
        help=f"suites, or groups of them: {', '.join(GROUPS)}; by default development",
    )
    running.add_argument(
        "--methods",
        nargs="+",
        default=["gp", "scaml", "rgpe", "guarded"],
        choices=METHODS,
        metavar="METHOD",
        help=", ".join(METHODS),
    )
    running.add_argument(
        "--targets", type=int, default=MAX_TARGETS, help=f"a suite, at most {MAX_TARGETS}"
    )
    running.add_argument("--seeds", type=int, default=1, help="their number")
    running.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    running.add_argument("--time-limit", type=float, help="minutes after which no case is begun")
    running.add_argument("--quiet", action="store_true", help="no progress bar")

    told = commands.add_parser("report", help="tables of what is finished")
    told.set_defaults(command=report)
    told.add_argument("--out", type=Path, default=OUT, help=f"the study's folder: {OUT}")
    told.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    return parser


if __name__ == "__main__":
    main()
