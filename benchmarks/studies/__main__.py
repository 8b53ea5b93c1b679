"""Runs a study by name, or writes its report: `python -m benchmarks.studies run branin-1`.

The same command continues an interrupted study. More seeds, tasks, suites or methods add to the
finished runs.
"""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.definitions import DEFINITIONS, Definition
from benchmarks.studies.estimate import core_hours, estimate
from benchmarks.studies.methods import METHODS, methods
from benchmarks.studies.methods.acquisitions import COMMON
from benchmarks.studies.problems import ProblemSource, suite_of
from benchmarks.studies.study import ABOUT, RESULTS, Study, gather, run_missing


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: The arguments; by default the arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    options.command(options)


def list_studies(options: argparse.Namespace) -> None:
    """Prints the names of all studies and methods."""
    for name, definition in DEFINITIONS.items():
        print(f"{name:18} {definition.title} ({definition.source}); {definition.seeds} seeds")
    print("\nmethods: " + "; ".join(METHODS))


def run(options: argparse.Namespace) -> None:
    """Runs the missing runs of a study."""
    definition = DEFINITIONS[options.name]
    folder = options.out or Path("out") / options.name
    acquisition = options.acquisition or definition.acquisition
    fitting = options.fitting or definition.fitting
    problems = definition.raw_problems if options.raw else definition.problems
    if problems is None:
        raise ValueError(f"{options.name} has no problems with raw outcomes: omit --raw.")
    every = problems(options.data)
    study = Study(
        _chosen(every, options.suites, options.tasks),
        methods(options.methods or definition.methods, acquisition, fitting),
        range(options.seeds or definition.seeds),
        definition.budget,
    )
    settings = {
        "name": options.name,
        "acquisition": acquisition,
        "fitting": fitting,
        "evaluations": definition.budget.evaluations,
        "initial": definition.budget.initial,
        "raw": options.raw,
    }
    _describe(folder / ABOUT, definition, settings, _command(options))
    if not options.no_estimate:
        table, hours = estimate(study, folder)
        print(f"{definition.title}: one run of each method\n\n{table}\n")
        print(f"about {hours:.2f} core-hours are missing", flush=True)
    if options.estimate:
        return
    limit = None if options.time_limit is None else 60 * options.time_limit
    run_missing(study, folder, options.jobs, progress=not options.quiet, time_limit=limit)
    results = gather(folder, [problem.name for problem in every], list(METHODS))
    print(f"{core_hours(results):.2f} core-hours; results: {folder / RESULTS}")


def _chosen(
    problems: Sequence[ProblemSource], suites: Sequence[str] | None, number: int | None
) -> list[ProblemSource]:
    """Returns the first `number` problems of each suite, or of the given suites."""
    of_suite: dict[str, list[ProblemSource]] = {}
    for problem in problems:
        of_suite.setdefault(suite_of(problem.name), []).append(problem)
    unknown = [name for name in suites or () if name not in of_suite]
    if unknown:
        raise ValueError(f"There is no suite {unknown[0]!r}: choose from {', '.join(of_suite)}.")
    return [problem for name in suites or of_suite for problem in of_suite[name][:number]]


def _describe(
    path: Path, definition: Definition, settings: Mapping[str, Any], command: str
) -> None:
    """Writes a JSON file that describes the study in a folder, with the commands that ran it."""
    commands = []
    if path.exists():
        earlier = json.loads(path.read_text(encoding="utf-8"))
        for key, value in settings.items():
            old = earlier.get(key, False)  # older files have no "raw"
            if old != value:
                raise ValueError(
                    f"{path.parent} has a study with {key} {old}, not {value}: choose another "
                    "folder by --out."
                )
        commands = [each for each in earlier["commands"] if each != command]
    about = {
        **settings,
        "title": definition.title,
        "source": definition.source,
        "scale": definition.scale,
        "at_most": definition.at_most,
        "groups": dict(definition.groups),
        "commands": [*commands, command],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _command(options: argparse.Namespace) -> str:
    """Returns the command that repeats the study, without the user's folders."""
    words = ["python", "-m", "benchmarks.studies", "run", options.name]
    words += ["--data", "FOLDER"] if DEFINITIONS[options.name].needs_data else []
    for name in ("seeds", "tasks", "suites", "methods", "acquisition", "fitting"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return shlex.join([*words, "--raw"] if options.raw else words)


def report(options: argparse.Namespace) -> None:
    """Writes the report of a finished study."""
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

    one = commands.add_parser("run", help="run a study, or its missing runs")
    one.set_defaults(command=run)
    one.add_argument("name", choices=DEFINITIONS)
    one.add_argument("--out", type=Path, help="the folder of the study; by default out/NAME")
    one.add_argument("--data", type=Path, help="the folder of the tables")
    one.add_argument("--seeds", type=int, help="the number of seeds")
    one.add_argument("--tasks", type=int, help="the number of targets per suite")
    one.add_argument(
        "--suites", nargs="+", metavar="SUITE", help="the suites to run; by default all"
    )
    one.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    one.add_argument("--acquisition", choices=[*COMMON, "paper"])
    one.add_argument("--fitting", choices=["thrifty", "thorough"])
    one.add_argument(
        "--raw", action="store_true", help="use the outcomes as recorded (suites only)"
    )
    one.add_argument("--jobs", type=int, default=1, help="the number of parallel processes")
    one.add_argument("--time-limit", type=float, help="minutes after which no new run starts")
    one.add_argument("--estimate", action="store_true", help="time one run per method, and stop")
    one.add_argument("--no-estimate", action="store_true", help="run without an estimate")
    one.add_argument("--quiet", action="store_true", help="no progress bar")

    told = commands.add_parser("report", help="write tables and pictures of a finished study")
    told.set_defaults(command=report)
    told.add_argument("folder", type=Path, help="the study's folder")
    told.add_argument("--out", type=Path, help="the folder of the report; by default FOLDER/report")
    told.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    return parser


if __name__ == "__main__":
    main()
