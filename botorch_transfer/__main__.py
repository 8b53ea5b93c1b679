"""Command line: ``python -m botorch_transfer`` and one of four commands.

    python -m botorch_transfer space old_runs.csv --outcome loss --output space.json
    python -m botorch_transfer suggest space.json old_runs.csv runs.csv -n 3 --append
    python -m botorch_transfer predict space.json old_runs.csv runs.csv --rows ideas.csv
    python -m botorch_transfer backtest space.json old_runs.csv --resume finished.csv

``space`` guesses the search space of a table; check the guess in an editor. ``suggest`` prints the
next rows to try. With ``--append``, it adds the rows, with empty outcomes, to the table of this
study's runs. ``predict`` prints predictions for given rows. ``backtest`` replays each old task and
prints whether the other old tasks would have helped. After an error, the program prints one line,
and its exit code is 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn


def _no_file(text: str, endings: str = ".json .csv .tsv .txt .xlsx .xls") -> str:
    """Returns ``text``, one of the values of an option that takes several values.

    Raises an error if ``text`` is the name of a file with one of the ``endings``.
    """
    if Path(text).suffix.lower() in endings.split() and "=" not in text:
        raise argparse.ArgumentTypeError(f"the option has taken the file {text}: put files first")
    return text


#: Options with one or more values; ``MANY`` collects the values of a repeated option in one list.
SOME: dict[str, Any] = {"nargs": "+", "type": _no_file}
MANY: dict[str, Any] = {**SOME, "action": "extend", "default": []}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one of the commands ``suggest``, ``predict``, ``backtest`` and ``space``.

    Args:
        arguments: Arguments after the program's name; by default the arguments of the process.

    Returns:
        The exit code: 0 after success, 2 after an error, 130 after Ctrl-C.

    Example:
        >>> main(["suggest", "no_such_space.json", "history.csv"])
        2
    """
    options = _parser().parse_args(arguments)
    # This import takes seconds: `--help` and mistyped options do not need it.
    from botorch_transfer.suggestion.command import run_command

    return run_command(options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help lists all options.\n")


def _parser() -> argparse.ArgumentParser:
    about = "Suggest runs from tables of old runs."
    parser = _Parser(prog="python -m botorch_transfer", description=about)
    # Defaults for commands that do not define these options.
    parser.set_defaults(space=None, first=None, own=None, runs=None, candidates=None, fixed=[])
    parser.set_defaults(repeats=False, cost=None, append=False, cache=None, progress=None)
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")

    add = commands.add_parser("suggest", help="print the next rows to try").add_argument
    _add_tables(add)
    add("-n", type=int, default=1, help="number of rows to suggest (default: 1)")
    add("--candidates", type=Path, metavar="stock.csv", help="CSV file of rows to choose from")
    add("--repeats", action="store_true", help="allow suggestions that repeat runs")
    add("--fixed", **MANY, metavar="name=value", help="values of parameters in all suggested rows")
    add("--same-in-batch", **MANY, metavar="name", help="parameters with one value for all rows")
    add("--cost", metavar="column", help="column of --candidates with the cost of each row")
    add("--append", action="store_true", help="add the suggested rows to the table of runs")
    add("--report", type=Path, metavar="out.html", help="write an HTML page with plots")

    add = commands.add_parser("predict", help="print predictions for given rows").add_argument
    _add_tables(add)
    add("--rows", type=Path, required=True, help="CSV file of the rows to predict")
    add("-o", "--output", type=Path, metavar="out.csv", help="CSV file to write (default: print)")

    add = commands.add_parser("backtest", help="replay each old task as a new task").add_argument
    add("space", type=Path, help="JSON file of the search space (see command space)")
    add("history", type=Path, nargs="+", help="CSV files of old runs")
    _add_meaning(add)
    add("--models", **SOME, metavar="name", help="names of the models to compare")
    add("--resume", type=Path, metavar="finished.csv", help="CSV file that keeps finished replays")

    add = commands.add_parser("space", help="guess a search space from a table").add_argument
    add("history", type=Path, nargs="+", help="CSV files of old runs")
    _add_columns(add)
    add("--task", help="column of task names (default: task, if it exists)")
    add("--leave-out", **MANY, help="other columns that are not parameters")
    add("-o", "--output", type=Path, metavar="out.json", help="JSON file to write (default: print)")
    return parser


def _add_tables(add: Callable[..., Any]) -> None:
    """Adds the arguments that ``suggest`` and ``predict`` share."""
    add("space", type=Path, nargs="?", help="JSON file of the search space (see command space)")
    add("first", type=Path, nargs="?", help="CSV file of old runs of other tasks")
    add("runs", type=Path, nargs="?", help="CSV file of this study's runs")
    text = "CSV files of old runs, in place of the second file"
    add("--history", **{**MANY, "type": lambda name: Path(_no_file(name, ".json"))}, help=text)
    add("--runs", dest="own", type=Path, help="this study's runs, in place of the third file")
    _add_meaning(add)
    add("--noise", **MANY, metavar="outcome=column", help="columns of standard errors")
    add("--status", default="status", help="column with the state of a run, such as failed")
    ends, text = ("least", "largest"), "least and largest possible value of the objectives"
    add("--outcome-range", nargs=2, type=float, metavar=ends, help=text)
    add("--model", help="a model class such as ScaMLGP; SingleTaskGP; or sorted")


def _add_meaning(add: Callable[..., Any]) -> None:
    """Adds the arguments that ``suggest``, ``predict`` and ``backtest`` share."""
    text = (
        "constraint on parameters, such as 'x1 + x2 <= 1', 'at_most(2, a, b, c)' or "
        "\"not (base == 'NaH' and x1 > 1)\"; or constraint on an outcome, such as 'memory <= 5'"
    )
    add("--constraint", dest="constraints", **MANY, metavar="'memory <= 5'", help=text)
    _add_columns(add)
    add("--goal", **SOME, metavar="min|max", help="goal for each outcome (default: min)")
    add("--task", default="task", help="column of task names in the old runs (default: task)")
    text = "value of a parameter that old runs do not record (unknown if only the name is given)"
    add("--missing", **MANY, metavar="name=value", help=text)
    add("--rename", **MANY, metavar="old=new", help="rename columns of the old runs")
    text = "fit models to logarithms of the named outcomes (if none is named: of all objectives)"
    add("--log", **{**SOME, "nargs": "*"}, metavar="outcome", help=text)
    add("--no-robust", dest="robust", action="store_false", help="keep very bad outcomes unchanged")
    add("--seed", type=int, default=0)
    text = "folder of pre-trained priors (default: $BOTORCH_TRANSFER_CACHE, else your cache folder)"
    add("--cache", metavar="folder|off", help=text)
    text = "show a progress bar (default: only if the output is a terminal)"
    add("--progress", action=argparse.BooleanOptionalAction, help=text)


def _add_columns(add: Callable[..., Any]) -> None:
    """Adds the arguments that name the columns of outcomes and of learning curves."""
    add("--outcome", **SOME, default=["loss"], help="columns of outcomes (default: loss)")
    add("--step", help="column of steps, if tables have learning curves")
    add("--run", help="column that identifies a run (default: all parameters)")


if __name__ == "__main__":
    sys.exit(main())
