"""Commands of ``python -m botorch_transfer``, which read tables and print or write results."""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from botorch.exceptions.errors import BotorchError
from pandas import DataFrame

from botorch_transfer.data.units import wrong_units
from botorch_transfer.progress import showing
from botorch_transfer.saving import cached_in
from botorch_transfer.search_space import SearchSpace, guess_space, read_table
from botorch_transfer.search_space.cells import (
    NUMBER,
    SHEETS,
    about_file,
    decoded,
    even_lines,
    likely_column,
    separator,
    shown_marks,
    with_numbers,
)
from botorch_transfer.suggestion.backtest import backtest
from botorch_transfer.suggestion.next_rows import Suggestion, predict_rows, suggest_rows
from botorch_transfer.suggestion.reading import EncodedTables, read_study


def run_command(options: argparse.Namespace) -> int:
    """Runs one command of ``python -m botorch_transfer``.

    Args:
        options: The parsed arguments of the command line.

    Returns:
        The exit code of the process.
    """
    program = f"python -m botorch_transfer {options.command}"
    handler, said = logging.StreamHandler(), dict[str, logging.LogRecord]()
    handler.setFormatter(_Lines())
    handler.addFilter(lambda record: said.setdefault(record.getMessage(), record) is record)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # These loggers report left-out rows, parameters without old values, and progress.
    for room in ("data", "search_space", "suggestion", "progress"):
        logging.getLogger(f"botorch_transfer.{room}").setLevel(logging.INFO)
    try:
        if options.own is not None and options.runs is not None:
            raise ValueError("The third file and --runs both name this study's runs: omit one.")
        options.runs = options.own or options.runs
        if options.first is not None:
            options.history = [options.first, *options.history]
        with cached_in(options.cache), showing(options.progress):
            COMMANDS[options.command](options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.stdout = io.StringIO()  # takes the output that is flushed at exit
    except KeyboardInterrupt:
        print(f"{program}: Interrupted. The cache keeps finished tasks.", file=sys.stderr)
        return 130
    except (BotorchError, OSError, ValueError, TypeError, ImportError) as error:
        print(f"{program}: {_sentence(error)}", file=sys.stderr)
        return 2
    return 0


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _in_options(record.getMessage())


def _sentence(error: Exception) -> str:
    """Converts an exception to a text that names command-line options, not Python arguments."""
    if isinstance(error, OSError) and error.filename is not None:
        return about_file(error.filename, error)
    return _in_options(" ".join(str(error).split()) or type(error).__name__)


def _in_options(text: str) -> str:
    """Replaces Python arguments in a message by options, such as ``task=`` by ``--task``."""
    text = re.sub(r"\brename=\{'([^']+)': '([^']+)'\}", r"--rename \1=\2", text)
    text = re.sub(r"\bmissing=\{'([^']+)': \.\.\.\}", r"--missing \1=...", text)
    names = "outcome_range|outcome|task|goal|noise|missing|rename|candidates|step|run|cost|repeats"
    names += "|log|status|fixed|constraint|same_in_batch|model|leave_out"
    found = rf"(?<!has )\b({names})s?=(?:True|'([^']*)'|(?=[ ,.:;]|$))(?: \(--[^)]+\))?"
    text = re.sub(found, lambda m: f"{_option(m[1])} {m[2] or ''}".rstrip(), text)
    return re.sub(rf"^({names}) (?=names |is |has |of )", lambda m: f"{_option(m[1])} ", text)


def _option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


# ---------------------------------------------------------------------------------------- suggest


def _suggest(options: argparse.Namespace) -> None:
    if options.append and options.runs is None:
        raise ValueError("--append adds rows to the file of this study's runs: give this file.")
    if options.runs is not None and options.runs in (options.history or []):
        raise ValueError(
            f"{options.runs} is given as old runs and as this study's runs: give different files."
        )
    may_start = options.append and options.runs.parent.is_dir()
    if options.runs is not None and not (may_start or options.runs.exists()):
        raise ValueError(
            f"No file {options.runs}: correct the path, or use --append if the folder exists."
        )
    _check_output(options, options.report, ".html", options.candidates)
    tables, runs = _tables(options)
    suggestion = suggest_rows(tables, **_named(options, "n model seed same_in_batch"))
    print(suggestion.rows.to_string(index=False))
    for number, words in enumerate(suggestion.prospects, start=1):
        print(f"Row {number}: {words}.")
    if suggestion.outlook:
        print(suggestion.outlook)
    if options.report is not None:
        from botorch_transfer.suggestion.page import suggestion_page  # slow, and seldom needed

        names = "history runs candidates fixed constraints outcome_range cost same_in_batch model "
        noted = _named(options, names + "rename missing log seed")
        page = suggestion_page(suggestion, runs, options.status, noted)
        options.report.write_text(page, encoding="utf-8")
        print(f"Report: {options.report}.")
    if options.append:  # last, so that the command can be repeated after an error
        like = options.history[0] if options.history else options.candidates
        _append(options.runs, like, suggestion, options.task)
        print(f"The rows are added to {options.runs}.")


def _named(options: argparse.Namespace, names: str) -> dict[str, Any]:
    """Returns a dictionary of some options; ``names`` lists their names, as in ``"task seed"``."""
    return {name: getattr(options, name) for name in names.split()}


def _check_output(options: Any, path: Path | None, ending: str, *others: Path | None) -> None:
    """Raises an error if an output file should not be written.

    There are three reasons: the folder is missing, the file is also an input file, or the file's
    name has the ending of a format other than ``ending``, such as ``".csv"`` instead of
    ``".html"``.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise ValueError(f"The folder {path.absolute().parent} does not exist: create the folder.")
    inputs = [*options.history, options.runs, options.space, *others]
    if path.resolve() in [each.resolve() for each in inputs if each is not None]:
        raise ValueError(f"The output file {path} is also an input file: name another file.")
    suffix, formats = path.suffix.lower(), {".csv", ".html", ".json", ".xlsx"} - {ending}
    if suffix in formats or (ending == ".html" and suffix not in ("", ".htm", ending)):
        raise ValueError(f"{path} must end in {ending}: name it {path.with_suffix(ending)}.")


def _predict(options: argparse.Namespace) -> None:
    _check_output(options, options.output, ".csv", options.rows)
    tables, _ = _tables(options)
    rows = read_table(options.rows, _choices(tables.space))
    found = predict_rows(tables, rows, options.model, options.seed)
    if options.output is None:
        print(found.to_string(index=False))
    else:
        found.to_csv(options.output, index=False)
        print(f"{len(found)} rows are in {options.output}.")


def _backtest(options: argparse.Namespace) -> None:
    space = SearchSpace.from_json(options.space)
    history = _history(options.history, _choices(space))
    given = _named(options, "outcome models seed resume progress")
    found = backtest(space, history, **given, **_meaning(options))
    print(found.table.to_string(index=False))
    print("distance: best row 0, median row 1; saved: runs of a plain GP minus runs of the model")
    print(_in_options(str(found)))


def _tables(options: argparse.Namespace) -> tuple[EncodedTables, DataFrame | None]:
    """Reads and encodes the files that the options name.

    Returns:
        The encoded tables, and the table of this study's runs before encoding. The table of runs
        is ``None`` if no file of runs is given. With ``--append``, the table of runs is also
        ``None`` if the file of runs does not exist yet or is empty.
    """
    if options.space is None and options.candidates is None:
        raise ValueError("There is no search space: give a JSON file with one, or --candidates.")
    space = None if options.space is None else SearchSpace.from_json(options.space)
    files = _named(options, "runs candidates")
    if options.append and not (options.runs.exists() and options.runs.stat().st_size):
        files["runs"] = None
    choices = _choices(space)
    history = _history(options.history, choices) if options.history else None
    given = _named(options, "outcome outcome_range status repeats cost")
    given["noise"] = _pairs(options.noise, "--noise", options.outcome[0])
    given["fixed"] = _pairs(options.fixed, "--fixed")
    given |= {name: read_table(path, choices) for name, path in files.items() if path is not None}
    return read_study(space, history, **given, **_meaning(options)), given.get("runs")


def _history(paths: Sequence[Path], choices: Sequence[str]) -> DataFrame:
    """Reads files of old runs into one table.

    If there are several files, the index of the table also has the file name of each row.
    """
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"{twice[0]} is named twice: name each table of old runs once.")
    tables = [read_table(path, choices) for path in paths]
    every = {name for table in tables for name in table}
    for table, path in zip(tables, paths, strict=True):
        spare = [name for name in table if sum(name in other for other in tables) == 1]
        for name in sorted(every - {*table}, key=str):
            if likely := likely_column(str(name), spare):
                text = f"{path} has the column {likely!r}, and another file has the column {name!r}"
                raise ValueError(f"{text}: use the same name in all files.")
        if len(paths) > 1:
            table.index = [f"{row} of {path.name}" for row in table.index]
    history = pd.concat(tables)
    history.attrs[SHEETS] = "".join(table.attrs.get(SHEETS, "") for table in tables)
    return history


def _meaning(options: argparse.Namespace) -> dict[str, Any]:
    """Converts options to the arguments that :func:`read_study` and :func:`backtest` share."""
    for text in options.constraints:
        if not re.search(r"[<>=(]| in ", text):
            raise ValueError(f"--constraint has {text!r}: put the whole constraint into quotes.")
    return _named(options, "goal task step run robust constraints") | {
        "log": options.log is not None and (options.log or True),
        "missing": _pairs(options.missing, "--missing"),
        "rename": _pairs(options.rename, "--rename"),
    }


def _choices(space: SearchSpace | None) -> list[str]:
    """Returns the names of all non-numeric parameters.

    In their columns, the word "None" is read as a value, not as an empty cell.
    """
    return [] if space is None else [p.name for p in space.parameters if not p.is_numeric]


def _append(path: Path, like: Path | None, suggestion: Suggestion, task: str) -> None:
    """Adds suggested rows, with empty outcomes, to the file of this study's runs.

    Real-valued parameters are written with six digits, or with twelve digits if there are
    constraints. A number gets the unit of the other cells in its column. If all runs belong to one
    task, the rows get the name of this task. The existing lines do not change, unless a column is
    added. If there is no file yet, the new file gets the encoding, separator and decimal mark of
    the file ``like``. An error while writing leaves the existing file unchanged.
    """
    if path.suffix.lower().startswith(".xls"):
        raise ValueError(f"Rows cannot be added to the Excel file {path}: save the runs as CSV.")
    path, tables = path.resolve(), suggestion.tables  # a symbolic link stays a link
    outcomes = [outcome.name for outcome in tables.outcomes]
    added = suggestion.rows.reindex(columns=[*tables.region.columns, *outcomes])
    digits = 12 if tables.region.constraints else 6
    for parameter in tables.space.parameters:
        if parameter.size is None:
            added[parameter.name] = added[parameter.name].map(lambda x: float(f"{x:.{digits}g}"))
    is_table = path.exists() and path.stat().st_size > 0
    like = path if is_table else like
    content, encoding = "", "utf-8"
    if like is not None and not like.suffix.lower().startswith(".xls"):
        content, encoding = decoded(like)
    sep, end = separator(content), "\r\n" if "\r\n" in content else "\n"
    names, *rows = even_lines(path, content, sep).values() if content else [[]]
    columns = {name.strip(): set(cells) - {""} for name, *cells in zip(names, *rows, strict=True)}
    numbers = tables.space.number_columns
    shown = [cell for name in (*numbers, *outcomes) for cell in columns.get(name, ())]
    marks = shown_marks(shown) or {mark for mark in ",." if any(mark in cell for cell in shown)}
    decimal = "," if marks == {","} or (not marks and sep == ";") else "."
    written = added.to_csv(index=False, sep=sep, decimal=decimal)
    new = list(csv.DictReader(io.StringIO(written), delimiter=sep))
    if not is_table:
        content, names, rows, columns = "", [], [], {}
    for name, cells in columns.items():
        found = (re.search(NUMBER, cell.replace(",", ".")) for cell in cells)
        units = {match["unit"] for match in found if match} - {None}
        for row in new:
            if name == task and len(cells) == 1:
                row[name] = min(cells)
            elif name in numbers and len(units) == 1 and row.get(name):
                row[name] += f" {min(units)}"
    lines = io.StringIO()
    writer = csv.writer(lines, delimiter=sep, lineterminator=end)
    if more := [name for name in added.columns if name not in columns]:
        content, names = "", [*names, *more]
        writer.writerows([names, *([*row, *[""] * len(more)] for row in rows)])
    writer.writerows([row.get(name.strip(), "") for name in names] for row in new)
    content += end if content and not content.endswith("\n") else ""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes((content + lines.getvalue()).encode(encoding))
    if is_table:
        shutil.copymode(path, part)
    part.replace(path)


def _pairs(texts: Sequence[str], option: str, first: str | None = None) -> dict[str, Any]:
    """Converts texts such as ``name=value`` to a dictionary from names to values.

    The meaning of a text without ``=`` depends on ``first``. If ``first`` is a name, the text is
    the value of this name. If ``first`` is ``None``, the text is a name, and its value is ``None``.
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and first is not None:
            name, value, equals = first, text, "="
        if not name or (option in ("--rename", "--fixed") and not value):
            form = "old=new, such as T=t" if option == "--rename" else "name=value, such as x=0.5"
            raise ValueError(f"{option} has {text!r}: write it as {form}.")
        if name in pairs:
            raise ValueError(f"{option} names {name!r} twice: name it once.")
        pairs[name] = value if equals and value else None
    return pairs


# ------------------------------------------------------------------------------------------ space


def _space(options: argparse.Namespace) -> None:
    _check_output(options, options.output, ".json")
    history = _history(options.history, ())
    task = options.task or ("task" if "task" in history else None)
    if task is None:
        text = "There is no column 'task': if another column has task names, give --task."
        print(text, file=sys.stderr)
    space = guess_space(history, options.leave_out, task, **_named(options, "outcome step run"))
    for suspicion in wrong_units(with_numbers(history, space.columns, True), space, task):
        print(f"Maybe another unit: {suspicion}", file=sys.stderr)
    entries = space.to_dict()["params"].items()
    lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries]
    text = "{\n" + ",\n".join(lines) + "\n}"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text + "\n", encoding="utf-8")
        print(f"The space is in {options.output}: check it in an editor.")


COMMANDS = {"suggest": _suggest, "predict": _predict, "backtest": _backtest, "space": _space}
