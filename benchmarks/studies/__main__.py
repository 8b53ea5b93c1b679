"""Runs a study by its name, or reports on one: `python -m benchmarks.studies run branin-1`.

A study that was interrupted goes on where it stopped by the same command; more seeds, tasks or
methods only add to it.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.studies.definitions import DEFINITIONS
from benchmarks.studies.estimate import core_hours, estimate
from benchmarks.studies.extent import Extent, grown
from benchmarks.studies.methods import METHODS, methods
from benchmarks.studies.study import RESULTS, Study, gather, run_missing
from benchmarks.studies.workers import workers

ABOUT = "study.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    options = _parser().parse_args(arguments)
    options.command(options)


def list_studies(options: argparse.Namespace) -> None:
    """Prints all studies and methods."""
    for name, definition in DEFINITIONS.items():
        print(f"{name:18} {definition.title} ({definition.source}); {definition.seeds} seeds")
    print("\nmethods: " + "; ".join(METHODS))


def run(options: argparse.Namespace) -> None:
    """Runs what is missing of a study."""
    definition = DEFINITIONS[options.name]
    folder = options.out or Path("out") / options.name
    acquisition = options.acquisition or definition.acquisition
    problems = definition.problems(options.data)
    asked = Extent(
        options.seeds or definition.seeds,
        len(problems[: options.tasks]),
        list(options.methods or definition.methods),
    )

    def study_of(extent: Extent) -> Study:
        return Study(
            problems[: extent.tasks],
            methods(extent.methods, acquisition, options.fitting),
            range(extent.seeds),
            definition.budget,
        )

    study = study_of(asked)
    about = {
        "name": options.name,
        "title": definition.title,
        "source": definition.source,
        "regret": definition.regret,
        "scale": definition.scale,
        "acquisition": acquisition,
        "fitting": options.fitting,
        "evaluations": definition.budget.evaluations,
        "initial": definition.budget.initial,
    }
    whole = grown(folder / ABOUT, about, asked)
    about["command"] = _command(options, whole, len(problems))
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, "extent": asdict(whole)}, indent=1)
    (folder / ABOUT).write_text(text + "\n", encoding="utf-8")
    if not options.no_estimate:
        table, hours = estimate(study, folder)
        print(f"{definition.title}: one run of each method\n\n{table}\n")
        print(f"about {hours:.2f} core-hours are missing", flush=True)
    if options.estimate:
        return
    with workers(options.backend, options.jobs, options.scheduler):
        limit = None if options.time_limit is None else 60 * options.time_limit
        run_missing(study, folder, progress=not options.quiet, time_limit=limit)
    results = gather(study_of(whole), folder)
    print(f"{core_hours(results):.2f} core-hours; results: {folder / RESULTS}")


def _command(options: argparse.Namespace, extent: Extent, num_tasks: int) -> str:
    """What repeats the study elsewhere: the choices, and not the folders, of a command line."""
    definition = DEFINITIONS[options.name]
    words = ["python", "-m", "benchmarks.studies", "run", options.name]
    words += ["--data", "FOLDER"] if definition.needs_data else []
    words += ["--seeds", str(extent.seeds)] if extent.seeds != definition.seeds else []
    words += ["--tasks", str(extent.tasks)] if extent.tasks < num_tasks else []
    words += ["--acquisition", options.acquisition] if options.acquisition else []
    words += [] if options.fitting == "thrifty" else ["--fitting", options.fitting]
    same = set(extent.methods) == set(definition.methods)
    words += [] if same else ["--methods", *extent.methods]
    return shlex.join(words)


def report(options: argparse.Namespace) -> None:
    """Writes the report of a study that was run."""
    from benchmarks.studies.report import write_report

    out = options.out or options.folder / "report"
    print(write_report(options.folder, out, options.methods))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(required=True)
    names = commands.add_parser("list", help="all studies and methods")
    names.set_defaults(command=list_studies)

    one = commands.add_parser("run", help="run a study, or what is missing of it")
    one.set_defaults(command=run)
    one.add_argument("name", choices=DEFINITIONS)
    one.add_argument("--out", type=Path, help="its folder; by default out/NAME")
    one.add_argument("--data", type=Path, help="the folder with the tables")
    one.add_argument("--seeds", type=int, help="the number of seeds")
    one.add_argument("--tasks", type=int, help="only the first tasks as targets")
    one.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    one.add_argument("--acquisition", choices=["log_ei", "ucb", "paper"])
    one.add_argument("--fitting", choices=["thrifty", "thorough"], default="thrifty")
    one.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    one.add_argument("--backend", choices=["local", "dask"], default="local")
    one.add_argument("--scheduler", help="the address of a running dask scheduler")
    one.add_argument("--time-limit", type=float, help="minutes after which nothing new is begun")
    one.add_argument("--estimate", action="store_true", help="time one run a method, and stop")
    one.add_argument("--no-estimate", action="store_true", help="go ahead at once")
    one.add_argument("--quiet", action="store_true", help="no progress bar")

    told = commands.add_parser("report", help="tables and pictures of a study that was run")
    told.set_defaults(command=report)
    told.add_argument("folder", type=Path, help="the study's folder")
    told.add_argument("--out", type=Path, help="where to write; by default FOLDER/report")
    told.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    return parser


if __name__ == "__main__":
    main()
