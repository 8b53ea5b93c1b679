"""Command line: ``python -m botorch_transfer`` and one of four commands.

    python -m botorch_transfer space old_runs.csv --outcome loss --output space.json
    python -m botorch_transfer suggest space.json old_runs.csv runs.csv -n 3 --append
    python -m botorch_transfer predict space.json old_runs.csv runs.csv --rows ideas.csv
    python -m botorch_transfer backtest space.json old_runs.csv --resume finished.csv

``space`` guesses the search space of a table; check the guess in an editor. ``suggest`` prints the
next rows to try. With ``--append``, it adds the rows, with empty outcomes, to the table of this
study's runs. ``predict`` prints predictions for given rows. ``backtest`` replays each old task and
prints whether the other old tasks would have helped. An error prints one line; the exit code is
then 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: Options with one or more values. If an option is repeated, its values are added.
MANY: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Arguments after the program's name; by default the arguments of the process.

    Returns:
        The exit code: 2 after an error, 130 after an interruption from the keyboard.

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
    # Values of options that some commands do not define.
    parser.set_defaults(space=None, first=None, own=None, runs=None, candidates=None, fixed=[])
    parser.set_defaults(repeats=False, cost=None, append=False, cache=None, progress=None)
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")

    add = commands.add_parser("suggest", help="print the next rows to try").add_argument
    _add_tables(add)
    add("-n", type=int, default=1, help="number of rows (1)")
    add("--candidates", type=Path, metavar="stock.csv", help="CSV file of rows to choose from")
    add("--repeats", action="store_true", help="allow suggestions that repeat runs")
    add("--fixed", **MANY, metavar="name=value", help="fixed values of parameters")
    add("--same-in-batch", **MANY, metavar="name", help="parameters with one value in all rows")
    add("--cost", metavar="column", help="column of the candidates' costs")
    add("--append", action="store_true", help="add the rows to the table of runs")
    add("--report", type=Path, metavar="out.html", help="write a page with plots")

    add = commands.add_parser("predict", help="print predictions for given rows").add_argument
    _add_tables(add)
    add("--rows", type=Path, required=True, help="CSV file of the rows")
    add("-o", "--output", type=Path, metavar="out.csv", help="file for the predictions")

    add = commands.add_parser("backtest", help="replay each old task as a new task").add_argument
    add("space", type=Path, help="JSON file of the space, see 'space'")
    add("history", type=Path, nargs="+", help="CSV files of old runs")
    _add_meaning(add)
    add("--models", nargs="+", metavar="name", help="models to compare; see --model")
    add("--resume", type=Path, metavar="finished.csv", help="file of finished runs")

    add = commands.add_parser("space", help="guess a search space from a table").add_argument
    add("history", type=Path, nargs="+", help="CSV files of old runs")
    _add_columns(add)
    add("--task", help="column of task names (task, if it exists)")
    add("--leave-out", **MANY, help="further columns that are not parameters")
    add("-o", "--output", type=Path, metavar="space.json", help="file for the space")
    return parser


def _add_tables(add: Callable[..., Any]) -> None:
    """Adds the arguments for tables and models."""
    add("space", type=Path, nargs="?", help="JSON file of the space, see 'space'")
    add("first", type=Path, nargs="?", help="CSV file of old runs of other tasks")
    add("runs", type=Path, nargs="?", help="CSV file of this study's runs")
    add("--history", **MANY, type=Path, help="CSV files of old runs, in place of the second file")
    add("--runs", dest="own", type=Path, help="file of this study's runs, in place of the third")
    _add_meaning(add)
    add("--noise", **MANY, metavar="outcome=column", help="columns of standard errors")
    add("--status", default="status", help="column of the runs that marks failed rows")
    ends, text = ("least", "largest"), "range of possible values of the objectives"
    add("--outcome-range", nargs=2, type=float, metavar=ends, help=text)
    add("--model", help="a model class such as ScaMLGP, or SingleTaskGP, or sorted")


def _add_meaning(add: Callable[..., Any]) -> None:
    """Adds the arguments for the columns of old runs, constraints, the seed and the cache."""
    text = (
        "constraint on parameters, such as 'x1 + x2 <= 1', 'at_most(2, a, b, c)' or "
        "\"not (base == 'NaH' and x1 > 1)\"; or limit on another outcome"
    )
    add("--constraint", dest="constraints", **MANY, metavar="'memory <= 5'", help=text)
    _add_columns(add)
    add("--goal", nargs="+", metavar="min|max", help="goal for each outcome: min or max (min)")
    add("--task", default="task", help="column of task names in the history (task)")
    text = "value of a parameter that the history lacks; give only the name if it is unknown"
    add("--missing", **MANY, metavar="name=value", help=text)
    add("--rename", **MANY, metavar="old=new", help="new column names")
    text = "model the logarithm of these outcomes (without a name: of all objectives)"
    add("--log", nargs="*", metavar="outcome", help=text)
    add("--no-robust", dest="robust", action="store_false", help="keep very bad outcomes unchanged")
    add("--seed", type=int, default=0)
    text = "folder of pre-trained priors (default: BOTORCH_TRANSFER_CACHE, or a user folder)"
    add("--cache", metavar="folder|off", help=text)
    text = "show a progress bar (default: on a terminal)"
    add("--progress", action=argparse.BooleanOptionalAction, help=text)


def _add_columns(add: Callable[..., Any]) -> None:
    """Adds the arguments for the columns of outcomes and learning curves."""
    add("--outcome", nargs="+", default=["loss"], help="column of the outcome (loss)")
    add("--step", help="column of steps, if tables have one row a step")
    add("--run", help="column that names a run (default: rows with equal parameters are one run)")


if __name__ == "__main__":
    sys.exit(main())
