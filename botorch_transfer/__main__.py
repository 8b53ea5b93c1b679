"""The command line: ``python -m botorch_transfer suggest`` and ``... space``.

    python -m botorch_transfer space old_runs.csv --task task --outcome loss > space.json
    python -m botorch_transfer suggest space.json old_runs.csv runs.csv -n 3 --append

The first command guesses the search space of a table, to be looked over in an editor. The second
one prints the next rows to try and, with ``--append``, adds them to the table of this study's runs,
with empty outcomes. Errors are one sentence; the exit code is then 2.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import logging
import math
import sys
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import BotorchError

from botorch_transfer import models
from botorch_transfer.data import tables
from botorch_transfer.models.calibration import calibrate, can_be_calibrated
from botorch_transfer.search_space import CategoricalParameter, SearchSpace, guess_space
from botorch_transfer.suggestion import Proposal, moments, propose

MAX_PICTURES = 12
"""The most parameters that a report draws."""


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
    # What was left out of the history, and what it does not record.
    logging.getLogger(tables.__name__).setLevel(logging.INFO)
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
    add.add_argument("--goal", nargs="+", default=["min"], metavar="min|max", help="what is good")
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
    text = " ".join(str(error).split())
    return text if text else type(error).__name__


def _read(path: Path, choices: Container[str] = ()) -> pd.DataFrame:
    """Reads a CSV file; in text and in columns of ``choices`` only an empty cell is empty."""
    try:
        frame = pd.read_csv(path, skipinitialspace=True)
        text = pd.read_csv(path, skipinitialspace=True, keep_default_na=False, na_values=[""])
        for name in frame.columns:
            if name in choices or not pd.api.types.is_numeric_dtype(frame[name]):
                frame[name] = text[name]  # "None", "null" and "nan" are words
        return frame
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty: it needs a line of column names.") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV file ({_sentence(error)}).") from error


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
    if options.runs is not None and options.runs.exists():
        runs = _read(options.runs, choices)
    if options.runs is not None and runs is None and not options.append:
        raise ValueError(
            f"There is no table {options.runs}: leave it out, or start it with --append."
        )
    goals = options.goal * len(options.outcome) if len(options.goal) == 1 else options.goal
    noise = _pairs(options.noise, "--noise", options.outcome[0])
    proposal = propose(
        space,
        history,
        runs,
        options.outcome,
        goals,
        options.n,
        task=options.task,
        model=_model(options.model),
        constraints=dict(map(_constraint, options.constraint)),
        noise={name: str(column) for name, column in noise.items()} or None,
        status=options.status,
        missing={
            name: _value(text, space, name)
            for name, text in _pairs(options.missing, "--missing").items()
        },
        rename={old: str(new) for old, new in _pairs(options.rename, "--rename").items()},
        seed=options.seed,
    )
    print(proposal.rows.to_string(index=False))
    if options.report is not None:
        page = report_page(space, proposal, runs, options.outcome, goals)
        options.report.write_text(page, encoding="utf-8")
        print(f"Report: {options.report}.")
    if options.append:  # last: after an error the command can be given again
        _append(options.runs, proposal, space)
        print(f"Added to {options.runs}.")


def _append(path: Path, proposal: Proposal, space: SearchSpace) -> None:
    """Adds rows to the table of runs; it is replaced at once, when the new one is complete."""
    added = proposal.rows.reindex(columns=[*space.columns, *proposal.models])
    # Cells stay as they are written.
    text: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
    new = pd.read_csv(io.StringIO(added.to_csv(index=False)), **text)
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
    for sign in ("<=", ">=", "<", ">"):
        name, found, bound = text.partition(sign)
        if found and name.strip():
            return name.strip(), f"{sign} {bound.strip()}"
    raise ValueError(f"--constraint has {text!r}: write it as 'memory <= 5'.")


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
            f"{options.history} has no column {absent[0]!r}: it has "
            f"{', '.join(map(str, history.columns))}."
        )
    space = guess_space(history, leave_out)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(entries)}"
        for name, entries in space.to_dict()["params"].items()
    ]
    print("{\n" + ",\n".join(lines) + "\n}")


# ----------------------------------------------------------------------------------------- report


def report_page(
    space: SearchSpace,
    proposal: Proposal,
    runs: pd.DataFrame | None,
    outcomes: Sequence[str],
    goals: Sequence[str],
) -> str:
    """Writes a page about suggested rows: tables, and what the model predicts around them.

    Args:
        space: The search space.
        proposal: The rows and the models.
        runs: The runs so far.
        outcomes: The columns of the objectives.
        goals: ``"min"`` or ``"max"`` for each.

    Returns:
        The page as HTML, pictures included.

    Raises:
        ImportError: If matplotlib is missing.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace.from_dict({"C": {"type": "float", "low": 0.1, "high": 10}})
        >>> old = DataFrame({"task": "monday", "C": [1.0, 3.0, 9.0], "loss": [0.5, 0.2, 0.4]})
        >>> report_page(space, propose(space, old), None, ["loss"], ["min"])[:15]
        '<!DOCTYPE html>'
    """
    parts = ["<h2>Next rows</h2>", _table(proposal.rows)]
    for outcome, goal in zip(outcomes, goals, strict=True):
        sign = 1.0 if goal == "max" else -1.0
        title = html.escape(outcome)
        parts += [f"<h2>Around the first row: {title}</h2>"]
        parts += _foresight(proposal.models[outcome])
        parts += [_image(figure) for figure in _slices(space, proposal, outcome, sign)]
        if runs is not None and outcome in runs.columns:
            parts += [f"<h2>Runs so far: {title}</h2>", _image(_progress(runs[outcome], sign))]
    if runs is not None:
        parts += ["<h2>All runs</h2>", _table(runs)]
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Next rows</title>'
        f"<style>{style}</style></head><body>\n{body}\n</body></html>\n"
    )


def _foresight(model: Any) -> list[str]:
    """How well the source tasks predict one another; nothing where none can be left out."""
    if not can_be_calibrated(model):
        return []
    return [f"<p>{html.escape(str(calibrate(model.prior, type(model))))}</p>"]


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(index=False, border=0, float_format="{:.4g}".format, na_rep="")


@torch.no_grad()
def _slices(space: SearchSpace, proposal: Proposal, outcome: str, sign: float) -> list[Any]:
    """Predictions along each parameter that is active in the first row, the others as there."""
    from matplotlib.figure import Figure

    figures = []
    row = proposal.rows[space.columns].iloc[[0]]
    for parameter in space.parameters[:MAX_PICTURES]:
        if len(parameter.columns) > 1 or row[parameter.name].isna().all():
            continue
        unit = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1).numpy()
        grid = unit if parameter.size is None else parameter.unit_grid()
        points = proposal.X[:1].repeat(len(grid), 1)
        points[:, space.feature_indices[parameter.name]] = torch.from_numpy(grid)
        points = space.round(points)  # other choices may switch parameters on and off
        values = space.decode(points)[parameter.name].to_numpy()
        mean, std = (part.numpy() for part in moments(proposal.models[outcome], points))
        mean, half = sign * mean, 2 * std
        figure = Figure(figsize=(4, 3), layout="constrained")
        axes = figure.subplots()
        if parameter.size is None:
            axes.plot(values, mean)
            axes.fill_between(values, mean - half, mean + half, alpha=0.25)
            axes.axvline(row[parameter.name].item(), linestyle=":", color="black")
            if getattr(parameter, "log", False) is True:
                axes.set_xscale("log")
        else:
            axes.errorbar([str(value) for value in values], mean, half, fmt="o")
            if len(values) > 10:
                axes.set_xticks(range(0, len(values), math.ceil(len(values) / 10)))
        axes.set_xlabel(parameter.name)
        axes.set_ylabel(f"predicted {outcome}, ± 2 std")
        figures.append(figure)
    return figures


def _progress(outcomes: pd.Series, sign: float) -> Any:
    """The outcomes in the table's order, and the best so far."""
    from matplotlib.figure import Figure

    values = pd.to_numeric(outcomes, errors="coerce").to_numpy(dtype=float)
    finite = pd.Series(sign * values).where(np.isfinite(values))
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    steps = range(1, len(values) + 1)
    axes.plot(steps, sign * finite, "o", label="run")
    axes.step(steps, sign * finite.cummax().ffill(), where="post", label="best so far")
    axes.set_xlabel("run")
    axes.set_ylabel(str(outcomes.name))
    axes.legend(frameon=False)
    return figure


def _image(figure: Any) -> str:
    """An image tag with the picture inside."""
    stored = io.BytesIO()
    figure.savefig(stored, format="png", dpi=110)
    return (
        f'<img alt="" src="data:image/png;base64,{base64.b64encode(stored.getvalue()).decode()}">'
    )


if __name__ == "__main__":
    sys.exit(main())
