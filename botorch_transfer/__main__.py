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
import io
import json
import logging
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pandas import DataFrame

    from botorch_transfer.search_space import SearchSpace
    from botorch_transfer.suggestion import EncodedTables, Suggestion


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
    # Imported after the options are parsed: help and mistyped options do not wait for the imports.
    from botorch.exceptions.errors import BotorchError

    from botorch_transfer.progress import showing
    from botorch_transfer.saving import cached_in

    handler, said = logging.StreamHandler(), dict[str, logging.LogRecord]()
    handler.setFormatter(_Lines())
    handler.addFilter(lambda record: said.setdefault(record.getMessage(), record) is record)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Report rows left out of tables, parameters without old values, and progress.
    for room in ("data", "search_space", "suggestion", "progress"):
        logging.getLogger(f"botorch_transfer.{room}").setLevel(logging.INFO)
    if options.own is not None and options.runs is not None:
        print(f"{options.program}: There are two tables of runs: name only one.", file=sys.stderr)
        return 2
    options.runs = options.own or options.runs
    if options.first is not None:
        options.history = [options.first, *options.history]
    try:
        with cached_in(options.cache), showing(options.progress):
            options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.stdout = io.StringIO()  # takes the output that is flushed at exit
    except KeyboardInterrupt:
        print(f"{options.program}: Interrupted. Finished old tasks are kept.", file=sys.stderr)
        return 130
    except (BotorchError, OSError, ValueError, TypeError, ImportError) as error:
        print(f"{options.program}: {_sentence(error)}", file=sys.stderr)
        return 2
    return 0


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _in_options(record.getMessage())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help lists all options.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m botorch_transfer", description="Suggest runs from tables of old runs."
    )
    parser.set_defaults(cache=None, progress=None, first=None, own=None, runs=None)
    commands = parser.add_subparsers(required=True, metavar="command")
    add = commands.add_parser("suggest", help="print the next rows to try")
    add.set_defaults(command=_suggest, program=add.prog)
    _add_tables(add)
    add.add_argument("-n", type=int, default=1, help="number of rows (1)")
    add.add_argument("--candidates", type=Path, metavar="stock.csv", help="rows to choose from")
    add.add_argument("--repeats", action="store_true", help="allow rows of the runs again")
    fixed = "fixed value of a parameter; the option may be repeated"
    add.add_argument(
        "--fixed", nargs="+", action="extend", default=[], metavar="name=value", help=fixed
    )
    same = "parameters with the same value in all rows"
    add.add_argument("--same-in-batch", nargs="+", default=[], metavar="name", help=same)
    add.add_argument("--cost", metavar="column", help="column of the candidates' costs")
    add.add_argument("--append", action="store_true", help="add the rows to the table of runs")
    add.add_argument("--report", type=Path, metavar="out.html", help="write a page with plots")

    add = commands.add_parser("predict", help="print predictions for given rows")
    add.set_defaults(command=_predict, program=add.prog, candidates=None, fixed=[], repeats=False)
    _add_tables(add)
    add.add_argument("--rows", type=Path, required=True, help="CSV file of the rows")
    add.add_argument(
        "-o", "--output", type=Path, metavar="out.csv", help="file for the predictions"
    )

    add = commands.add_parser("backtest", help="replay each old task as a new task")
    add.set_defaults(command=_backtest, program=add.prog)
    add.add_argument("space", type=Path, help="JSON file of the space, see 'space'")
    add.add_argument("history", type=Path, nargs="+", help="CSV files of old runs")
    _add_meaning(add)
    add.add_argument("--models", nargs="+", metavar="name", help="models to compare; see --model")
    add.add_argument("--resume", type=Path, metavar="finished.csv", help="file of finished runs")

    guess = commands.add_parser("space", help="guess a search space from a table")
    guess.set_defaults(command=_space, program=guess.prog)
    guess.add_argument("history", type=Path, nargs="+", help="CSV files of old runs")
    guess.add_argument("--outcome", nargs="+", default=["loss"], help="columns of outcomes (loss)")
    guess.add_argument("--task", help="column of task names (task, if it exists)")
    guess.add_argument("--leave-out", nargs="+", default=[], help="other columns to leave out")
    guess.add_argument("--step", help="column of steps of learning curves: one row per step")
    guess.add_argument("--run", help="column that names a run")
    guess.add_argument("-o", "--output", type=Path, metavar="space.json", help="file for the space")
    return parser


def _add_tables(add: argparse.ArgumentParser) -> None:
    """Adds the arguments for tables and models."""
    add.add_argument("space", type=Path, nargs="?", help="JSON file of the space, see 'space'")
    add.add_argument("first", type=Path, nargs="?", help="CSV file of old runs of other tasks")
    add.add_argument("runs", type=Path, nargs="?", help="CSV file of this study's runs")
    files = "CSV files of old runs, instead of the file after the space"
    add.add_argument("--history", nargs="+", action="extend", type=Path, default=[], help=files)
    add.add_argument(
        "--runs",
        dest="own",
        type=Path,
        help="CSV file of this study's runs, if no history is given",
    )
    _add_meaning(add)
    add.add_argument("--noise", nargs="+", default=[], metavar="outcome=column")
    add.add_argument("--status", default="status", help="column of the runs that marks failed rows")
    add.add_argument(
        "--outcome-range",
        nargs=2,
        type=float,
        metavar=("least", "largest"),
        help="range of possible values of the objectives",
    )
    add.add_argument("--model", help="model class, such as ScaMLGP; SingleTaskGP; or sorted")


def _add_meaning(add: argparse.ArgumentParser) -> None:
    """Adds the arguments for the columns of old runs, constraints, the seed and the cache."""
    add.add_argument(
        "--constraint",
        dest="constraints",
        nargs="+",
        action="extend",
        metavar="'memory <= 5'",
        help="constraint on rows, such as 'x1 + x2 <= 1', 'at_most(2, a, b, c)' or "
        "\"not (base == 'NaH' and x1 > 1)\"; or limit of a further outcome",
    )
    add.add_argument("--outcome", nargs="+", default=["loss"], help="column of the outcome (loss)")
    add.add_argument("--goal", nargs="+", metavar="min|max", help="direction of the outcome (min)")
    add.add_argument("--task", default="task", help="column of task names in the history (task)")
    add.add_argument(
        "--missing",
        nargs="+",
        default=[],
        metavar="name=value",
        help="value of a parameter that the history lacks; unknown if only the name is given",
    )
    add.add_argument("--rename", nargs="+", default=[], metavar="old=new", help="new column names")
    add.add_argument(
        "--log",
        nargs="*",
        metavar="outcome",
        help="model the logarithm of an objective whose best values are tiny; without a name, of "
        "all objectives",
    )
    plain = "do not limit very bad outcomes"
    add.add_argument("--no-robust", dest="robust", action="store_false", help=plain)
    add.add_argument("--step", help="column of steps of learning curves: one row per step")
    add.add_argument("--run", help="column that names a run (default: equal parameters, equal run)")
    add.add_argument("--seed", type=int, default=0)
    add.add_argument(
        "--cache",
        metavar="folder|off",
        help="folder that caches pre-training; by default BOTORCH_TRANSFER_CACHE, or else the "
        "user's cache folder",
    )
    bar = argparse.BooleanOptionalAction
    add.add_argument("--progress", action=bar, help="show a progress bar (default: on a terminal)")


def _sentence(error: Exception) -> str:
    """Returns the error's message, with command-line options instead of Python arguments."""
    if isinstance(error, FileNotFoundError):
        return f"There is no file {error.filename}."
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a folder: name a file in it."
    return _in_options(" ".join(str(error).split()) or type(error).__name__)


def _in_options(text: str) -> str:
    """Replaces Python arguments by command-line options."""
    text = re.sub(r"\brename=\{'([^']+)': '([^']+)'\}", r"--rename \1=\2", text)
    text = re.sub(r"\bmissing=\{'([^']+)': \.\.\.\}", r"--missing \1=...", text)
    names = "outcome_range|outcome|task|goal|noise|missing|rename|candidates|step|run|cost|repeats"
    names += "|log|status|fixed|constraint|same_in_batch|model"
    found = rf"(?<!has )\b({names})s?=(?:True|'([^']*)'|(?=[ ,.:;]|$))(?: \(--[^)]+\))?"
    text = re.sub(found, lambda m: f"{_option(m[1])} {m[2] or ''}".rstrip(), text)
    return re.sub(rf"^({names}) (?=names |is |has |of )", lambda m: f"{_option(m[1])} ", text)


def _option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


# ---------------------------------------------------------------------------------------- suggest


def _suggest(options: argparse.Namespace) -> None:
    if options.append and options.runs is None:
        raise ValueError(
            "--append needs a table of runs: name the file to which the rows are added."
        )
    _check_output(options.report, *_inputs(options))
    from botorch_transfer.suggestion import suggest_rows
    from botorch_transfer.suggestion.page import suggestion_page

    tables, runs = _tables(options, options.append)
    shared, cost = options.same_in_batch, options.cost
    suggestion = suggest_rows(tables, options.n, options.model, options.seed, shared, cost)
    print(suggestion.rows.to_string(index=False))
    for number, words in enumerate(suggestion.prospects, start=1):
        print(f"Row {number}: {words}.")
    if suggestion.outlook:
        print(suggestion.outlook)
    if options.report is not None:
        told = (
            *("history", "runs", "candidates", "fixed", "constraints", "outcome_range", "cost"),
            *("same_in_batch", "model", "rename", "missing", "log", "seed"),
        )
        noted = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else value
            for name in told
            if (value := getattr(options, name)) not in (None, [])
        }
        page = suggestion_page(suggestion, runs, options.status, noted)
        options.report.write_text(page, encoding="utf-8")
        print(f"Report: {options.report}.")
    if options.append:  # last: after an error, the command can be repeated
        like = options.history[0] if options.history else options.candidates
        _append(options.runs, like, suggestion, options.task)
        print(f"Added to {options.runs}.")


def _inputs(options: argparse.Namespace) -> list[Path | None]:
    return [*options.history, options.runs, options.candidates, options.space]


def _check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuses an output file that is one of the inputs, or whose folder does not exist."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ValueError(
            f"The folder {path.absolute().parent} does not exist: make it, or name another file."
        )
    if path is not None and any(i is not None and i.resolve() == path.resolve() for i in inputs):
        raise ValueError(f"{path} is one of the tables to read: name another file.")


def _predict(options: argparse.Namespace) -> None:
    _check_output(options.output, *options.history, options.runs, options.rows, options.space)
    from botorch_transfer.search_space import read_table
    from botorch_transfer.suggestion import predict_rows

    tables, _ = _tables(options)
    rows = read_table(options.rows, _choices(tables.space))
    found = predict_rows(tables, rows, options.model, options.seed)
    if options.output is None:
        print(found.to_string(index=False))
    else:
        found.to_csv(options.output, index=False)
        print(f"{len(found)} rows are in {options.output}.")


def _backtest(options: argparse.Namespace) -> None:
    if len(options.outcome) > 1:
        raise ValueError("A backtest needs exactly one outcome: name it by --outcome.")
    from botorch_transfer.search_space import SearchSpace
    from botorch_transfer.suggestion import backtest

    space = SearchSpace.from_json(options.space)
    found = backtest(
        space,
        _history(options.history, _choices(space)),
        options.outcome[0],
        models=options.models,
        seed=options.seed,
        resume=options.resume,
        progress=options.progress,
        **_meaning(options, space),
    )
    print(found.table.to_string(index=False))
    print("distance: 0 at the best row, 1 at the median; saved: runs fewer than with a plain GP")
    print(_in_options(str(found)))


def _tables(
    options: argparse.Namespace, may_start: bool = False
) -> tuple[EncodedTables, DataFrame | None]:
    """Reads the named files; returns the encoded tables, and the table of runs if it exists."""
    from botorch_transfer.search_space import SearchSpace, read_table
    from botorch_transfer.suggestion import read_study

    if options.space is None and options.candidates is None:
        raise ValueError(
            "There is no search space: name its JSON file first (the command 'space' writes it), "
            "or name a table of rows to choose from by --candidates."
        )
    space = None if options.space is None else SearchSpace.from_json(options.space)
    files = {name: getattr(options, name) for name in ("runs", "candidates")}
    if may_start and not (options.runs.exists() and options.runs.stat().st_size):
        files["runs"] = None
    elif options.runs is not None and not options.runs.exists():
        raise ValueError(f"{options.runs} has no table: omit the file, or create it with --append.")
    choices = _choices(space)
    read = {
        name: None if path is None else read_table(path, choices) for name, path in files.items()
    }
    tables = read_study(
        space,
        _history(options.history, choices) if options.history else None,
        read["runs"],
        options.outcome,
        candidates=read["candidates"],
        noise=_pairs(options.noise, "--noise", options.outcome[0]),
        outcome_range=options.outcome_range,
        status=options.status,
        fixed=_values(options.fixed, "--fixed", space),
        repeats=options.repeats,
        cost=getattr(options, "cost", None),
        **_meaning(options, space),
    )
    return tables, read["runs"]


def _history(paths: Sequence[Path], choices: Sequence[str]) -> DataFrame:
    """Reads the files of old runs; if there are several, labels each row by row and file."""
    from pandas import concat

    from botorch_transfer.data.columns import likely_column
    from botorch_transfer.search_space import read_table

    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"{twice[0]} is named twice: name each table of old runs once.")
    tables = [read_table(path, choices) for path in paths]
    every = {name for table in tables for name in table}
    for table, path in zip(tables, paths, strict=True):
        spare = [name for name in table if sum(name in other for other in tables) == 1]
        for name in sorted(every - {*table}, key=str):
            if likely := likely_column(str(name), spare):
                raise ValueError(
                    f"{path} has the column {likely!r}, and another table has {name!r}: give both "
                    "columns the same name."
                )
    for table, path in zip(tables, paths, strict=True):
        if len(paths) > 1:
            table.index = [f"{row} of {path.name}" for row in table.index]
    return concat(tables)


def _meaning(options: argparse.Namespace, space: SearchSpace | None) -> dict[str, Any]:
    """Returns the Python arguments that describe the columns of old runs."""
    for text in options.constraints or ():
        if not re.search(r"[<>=(]| in ", text):
            raise ValueError(f"--constraint has {text!r}: put all of 'x + y <= 1' into quotes.")
    names = ("goal", "task", "step", "run", "robust", "constraints")
    return {name: getattr(options, name) for name in names} | {
        "log": options.log is not None and (options.log or True),
        "missing": _values(options.missing, "--missing", space),
        "rename": _pairs(options.rename, "--rename"),
    }


def _choices(space: SearchSpace | None) -> list[str]:
    """Returns the columns of choices, in which a text such as "None" is a value."""
    from botorch_transfer.search_space import CategoricalParameter

    parameters = () if space is None else space.parameters
    return [p.name for p in parameters if isinstance(p, CategoricalParameter)]


def _append(path: Path, like: Path | None, suggestion: Suggestion, task: str) -> None:
    """Adds rows to the table of runs; replaces the file only when the new table is complete.

    Numbers without a step are written with six digits, or twelve digits under constraints, and with
    the unit of the column. If all runs belong to one task, the rows get the name of this task. A
    new table has the separators of ``like``.
    """
    import pandas as pd

    from botorch_transfer.search_space import FloatParameter
    from botorch_transfer.search_space.cells import NUMBER, decoded, even_lines, separator

    if path.suffix.lower().startswith(".xls"):
        raise ValueError(f"Rows cannot be added to the Excel file {path}: save it as a CSV file.")
    tables = suggestion.tables
    names = [outcome.name for outcome in tables.outcomes]
    added = suggestion.rows.reindex(columns=[*tables.region.columns, *names])
    digits = 12 if tables.region.constraints else 6
    for parameter in tables.space.parameters:
        if isinstance(parameter, FloatParameter) and parameter.size is None:
            added[parameter.name] = added[parameter.name].map(lambda x: float(f"{x:.{digits}g}"))
    # Existing cells keep their text.
    text: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
    is_table = path.exists() and path.stat().st_size > 0
    like = path if is_table else like
    text_of, encoding = ("", "utf-8")
    if like is not None and not like.suffix.lower().startswith(".xls"):
        text_of, encoding = decoded(like)
    sep = separator(text_of)
    written = added.to_csv(index=False, sep=sep, decimal="," if sep == ";" else ".")
    new = pd.read_csv(io.StringIO(written), sep=sep, **text)
    old = new.iloc[:0]
    if is_table:
        names, *rows = even_lines(path, text_of, sep).values()
        old = pd.DataFrame(rows, columns=names, dtype=str)
    for name in old.columns:
        cells = old.loc[old[name] != "", name].drop_duplicates()
        units = cells.str.replace(",", ".").str.extract(NUMBER)["unit"].dropna().unique()
        if name == task and len(cells) == 1:
            new[name] = cells.item()
        elif name in tables.space.number_columns and len(units) == 1:
            new[name] = new[name].where(new[name] == "", new[name] + f" {units[0]}")
    part = path.with_name(f"{path.name}.part")
    table = pd.concat([old, new], ignore_index=True).fillna("")
    table.to_csv(part, index=False, sep=sep, encoding=encoding)
    part.replace(path)


def _pairs(texts: Sequence[str], option: str, first: str | None = None) -> dict[str, Any]:
    """Reads ``name=value``; a bare word is the value of ``first``, else a name without a value."""
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and first is not None:
            name, value, equals = first, text, "="
        if not name or (option in ("--rename", "--fixed") and not value):
            raise ValueError(f"{option} has {text!r}: write it as name=value, such as x=0.5.")
        if name in pairs:
            raise ValueError(f"{option} names {name!r} twice: name it once.")
        pairs[name] = value if equals and value else None
    return pairs


def _values(texts: Sequence[str], option: str, space: SearchSpace | None) -> dict[str, Any]:
    """Reads ``name=value``; converts each value to the type of its parameter."""
    return {name: _value(text, space, name) for name, text in _pairs(texts, option).items()}


def _value(text: str | None, space: SearchSpace | None, name: str) -> Any:
    """Converts a text to a listed value of the parameter, else to a number, else keeps it."""
    for parameter in () if space is None else space.parameters:
        for value in getattr(parameter, "values", ()):
            if parameter.name == name and str(value) == text:
                return value
    with suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]
    return text


# ------------------------------------------------------------------------------------------ space


def _space(options: argparse.Namespace) -> None:
    _check_output(options.output, *options.history)
    from botorch_transfer.search_space import guess_space

    history = _history(options.history, ())
    task = options.task or ("task" if "task" in history else None)
    if task is None:
        print(
            "There is no column 'task': if the table has tasks, name their column by --task.",
            file=sys.stderr,
        )
    curves = {"step": options.step, "run": options.run}
    named = [*options.outcome, *options.leave_out, task, *curves.values()]
    if absent := [name for name in named if name is not None and name not in history.columns]:
        files = ", ".join(map(str, options.history))
        raise ValueError(
            f"{files} has no column {absent[0]!r}: name the column of tasks by --task and the "
            f"column of outcomes by --outcome. Columns: {', '.join(map(str, history.columns))}."
        )
    space = guess_space(history, options.leave_out, task, outcome=options.outcome, **curves)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(entries)}"
        for name, entries in space.to_dict()["params"].items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text + "\n", encoding="utf-8")
        print(f"The space is in {options.output}: check it in an editor.")


if __name__ == "__main__":
    sys.exit(main())
