"""The command line: ``python -m botorch_transfer suggest`` and ``... space``.

    python -m botorch_transfer space old_runs.csv --task task --outcome loss > space.json
    python -m botorch_transfer suggest space.json old_runs.csv runs.csv -n 3 --append

The first command guesses the search space of a table, to be looked over in an editor. The second
one prints the next rows to try and, with ``--append``, adds them to the table of this study's runs,
with empty outcomes. Errors are one sentence; the exit code is then 2.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from botorch.exceptions.errors import BotorchError

from botorch_transfer import models
from botorch_transfer.data import tables
from botorch_transfer.search_space import CategoricalParameter, SearchSpace, guess, guess_space
from botorch_transfer.suggestion import Suggestion, read_outcomes, read_tables, suggest_rows
from botorch_transfer.suggestion.page import suggestion_page


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: What follows the program's name; those of the process if omitted.

    Returns:
        The exit code: 2 after an error.

    Example:
        >>> main(["suggest", "no_such_space.json", "history.csv"])
        2
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # What was left out of a table, and what the history does not record.
    for room in (tables, guess):
        logging.getLogger(room.__name__).setLevel(logging.INFO)
    try:
        options.run(options)
    except FileNotFoundError as error:
        print(f"{options.program}: There is no file {error.filename}.", file=sys.stderr)
        return 2
    except (BotorchError, OSError, ValueError, TypeError, ImportError) as error:
        print(f"{options.program}: {_sentence(error)}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m botorch_transfer", description="Suggest runs from tables of old ones."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    add = commands.add_parser("suggest", help="print the next rows to try")
    add.set_defaults(run=_suggest, program=add.prog)
    add.add_argument("space", type=Path, help="JSON file of the search space, see 'space'")
    add.add_argument("history", type=Path, help="CSV file of old runs of other tasks")
    add.add_argument("runs", type=Path, nargs="?", help="CSV file of this study's runs")
    add.add_argument("-n", type=int, default=1, help="how many rows (1)")
    add.add_argument("--outcome", nargs="+", default=["loss"], help="column of the outcome (loss)")
    add.add_argument("--goal", nargs="+", metavar="min|max", help="what is good (min)")
    add.add_argument("--task", default="task", help="the history's column of task names (task)")
    add.add_argument("--constraint", nargs="+", default=[], metavar="'memory <= 5'")
    add.add_argument("--noise", nargs="+", default=[], metavar="outcome=column")
    add.add_argument("--status", default="status", help="the runs' column that says what failed")
    add.add_argument(
        "--missing",
        nargs="+",
        default=[],
        metavar="name=value",
        help="parameters that the history does not record; without a value, it is unknown",
    )
    add.add_argument("--rename", nargs="+", default=[], metavar="old=new", help="new column names")
    add.add_argument(
        "--log",
        nargs="*",
        metavar="outcome",
        help="model the logarithm of losses whose best values are tiny; of all objectives if none "
        "is named",
    )
    add.add_argument("--step", help="the column of learning curves' steps: one row a step")
    add.add_argument("--run", help="the column that names a run (same parameters: same run)")
    add.add_argument("--model", help="a model class, such as ScaMLGP")
    add.add_argument("--seed", type=int, default=0)
    add.add_argument("--append", action="store_true", help="add the rows to the table of runs")
    add.add_argument("--report", type=Path, metavar="out.html", help="write a page with pictures")

    guess = commands.add_parser("space", help="guess a search space from a table, to be edited")
    guess.set_defaults(run=_space, program=guess.prog)
    guess.add_argument("history", type=Path, help="CSV file of old runs")
    guess.add_argument("--outcome", nargs="+", default=["loss"], help="columns of outcomes (loss)")
    guess.add_argument("--task", default="task", help="column of task names (task)")
    guess.add_argument("--leave-out", nargs="+", default=[], help="other columns to leave out")
    return parser


def _sentence(error: Exception) -> str:
    """The message, with options of the command line in place of arguments of Python."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"\brename=\{'([^']+)': '([^']+)'\}", r"--rename \1=\2", text)
    text = re.sub(r"\bmissing=\{'([^']+)': \.\.\.\}", r"--missing \1=...", text)
    return re.sub(r"\b(outcome|task|goal|noise|missing|rename)=(?=[ ,.:;]|$)", r"--\1", text)


def _read(path: Path, choices: Container[str] = ()) -> pd.DataFrame:
    """Reads a CSV file; in text and in columns of ``choices`` only an empty cell is empty.

    Rows have the numbers that a spreadsheet gives them, and empty rows are left out.
    """
    try:
        frame = pd.read_csv(path, skipinitialspace=True)
        text = pd.read_csv(path, skipinitialspace=True, keep_default_na=False, na_values=[""])
        separators = [sign for sign in ";\t" if sign in str(frame.columns[0])]
        if len(frame.columns) == 1 and separators:
            raise ValueError(
                f"{path} has {separators[0]!r} between its cells: save it with commas, and with "
                "points in numbers."
            )
        for name in frame.columns:
            if name in choices or not pd.api.types.is_numeric_dtype(frame[name]):
                # "None", "null" and "nan" are words.
                frame[name] = text[name].map(_stripped)
        frame.index += 2
        return frame.dropna(how="all")
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty: it needs a line of column names.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8: save it as 'CSV UTF-8'.") from error
    except pd.errors.ParserError as error:
        raise ValueError(f"{path} is no CSV file ({_sentence(error)}).") from error


def _stripped(cell: Any) -> Any:
    return cell.strip() if isinstance(cell, str) else cell


# ---------------------------------------------------------------------------------------- suggest


def _suggest(options: argparse.Namespace) -> None:
    if options.append and options.runs is None:
        raise ValueError("--append needs the table of runs to add the rows to: name its file.")
    try:
        spec = json.loads(options.space.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{options.space} is no JSON file: {error}.") from error
    if not isinstance(spec, dict):
        raise ValueError(
            f"{options.space} holds a {type(spec).__name__} instead of parameters: start "
            "from the one that 'python -m botorch_transfer space' guesses."
        )
    space = SearchSpace.from_dict(spec)
    choices = [p.name for p in space.parameters if isinstance(p, CategoricalParameter)]
    history, runs = _read(options.history, choices), None
    if options.runs is not None and options.runs.exists() and options.runs.stat().st_size:
        runs = _read(options.runs, choices)
    if options.runs is not None and runs is None and not options.append:
        raise ValueError(
            f"There is no table in {options.runs}: leave it out, or start it with --append."
        )
    goals = options.goal[0] if options.goal and len(options.goal) == 1 else options.goal
    noise = _pairs(options.noise, "--noise", options.outcome[0])
    missing = _pairs(options.missing, "--missing")
    outcomes = read_outcomes(
        options.outcome,
        goals,
        constraints=dict(map(_constraint, options.constraint)),
        noise={name: str(column) for name, column in noise.items()},
        log=options.log is not None and (options.log or True),
    )
    tables = read_tables(
        space,
        outcomes,
        history,
        runs,
        task=options.task,
        status=options.status,
        missing={name: _value(text, space, name) for name, text in missing.items()},
        rename={old: str(new) for old, new in _pairs(options.rename, "--rename").items()},
        step=options.step,
        run=options.run,
    )
    suggestion = suggest_rows(tables, options.n, _model(options.model), options.seed)
    print(suggestion.rows.to_string(index=False))
    if options.report is not None:
        page = suggestion_page(suggestion, runs)
        options.report.write_text(page, encoding="utf-8")
        print(f"Report: {options.report}.")
    if options.append:  # last: after an error the command can be given again
        _append(options.runs, suggestion)
        print(f"Added to {options.runs}.")


def _append(path: Path, suggestion: Suggestion) -> None:
    """Adds rows to the table of runs; it is replaced at once, when the new one is complete."""
    added = suggestion.rows.reindex(columns=[*suggestion.tables.space.columns, *suggestion.models])
    # Cells stay as they are written.
    text: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
    new = pd.read_csv(io.StringIO(added.to_csv(index=False, float_format="%.12g")), **text)
    old = pd.read_csv(path, **text) if path.exists() and path.stat().st_size else new.iloc[:0]
    part = path.with_name(f"{path.name}.part")
    pd.concat([old, new], ignore_index=True).fillna("").to_csv(part, index=False)
    part.replace(path)


def _pairs(texts: Sequence[str], option: str, first: str | None = None) -> dict[str, str | None]:
    """Reads ``name=value``; a bare word is the value of ``first``, or a name without a value."""
    pairs: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and first is not None:
            name, value, equals = first, text, "="
        if not name or (option == "--rename" and not value):
            raise ValueError(f"{option} has {text!r}: write it as name=value.")
        pairs[name] = value if equals and value else None
    return pairs


def _constraint(text: str) -> tuple[str, str]:
    parts = re.fullmatch(r"\s*(\S.*?)\s*([<>].*)", text)
    if parts is None:
        raise ValueError(f"--constraint has {text!r}: write it as 'memory <= 5'.")
    return parts[1], parts[2]


def _value(text: str | None, space: SearchSpace, name: str) -> Any:
    """One of the parameter's values where the text is one, else a number where it is one."""
    for parameter in space.parameters:
        for value in getattr(parameter, "values", ()):
            if parameter.name == name and str(value) == text:
                return value
    for read in (int, float):
        try:
            return read(text)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return text


def _model(name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    if name not in models.__all__:
        raise ValueError(f"There is no model {name!r}: choose one of {', '.join(models.__all__)}.")
    model: Callable[..., Any] = getattr(models, name)
    return model


# ------------------------------------------------------------------------------------------ space


def _space(options: argparse.Namespace) -> None:
    history = _read(options.history)
    leave_out = [options.task, *options.outcome, *options.leave_out]
    if absent := [name for name in leave_out if name not in history.columns]:
        raise ValueError(
            f"{options.history} has no column {absent[0]!r}: name the columns of the task by "
            f"--task and of the outcome by --outcome; there are "
            f"{', '.join(map(str, history.columns))}."
        )
    space = guess_space(history, leave_out)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(entries)}"
        for name, entries in space.to_dict()["params"].items()
    ]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    sys.exit(main())
