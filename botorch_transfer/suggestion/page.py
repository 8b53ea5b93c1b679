"""One HTML page about suggested rows: tables, and pictures of what the model predicts around them.

``python -m botorch_transfer suggest ... --report out.html`` writes it. Pictures are inside of the
page, so that it can be sent to somebody as one file. They need matplotlib (extra ``plot``).
"""

from __future__ import annotations

import base64
import html
import io
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from botorch_transfer.calibration import calibrate, can_be_calibrated
from botorch_transfer.plotting import BLACK, plot_slice
from botorch_transfer.report import transfer_report
from botorch_transfer.search_space import SimplexParameter
from botorch_transfer.suggestion import Outcome, Suggestion

EXPLANATION = """\
predicted_mean and predicted_std: the outcome that the model expects there, and its standard \
deviation. acquisition: what the row was chosen for. Each row was chosen in addition to those \
above it, so run them from the top. sources: the old tasks that expect a good outcome there. In \
the pictures the other parameters are those of the first row (dotted line), the new task is the \
target, and bands hold 95 % of what the model deems possible."""

MAX_PICTURES = 12
"""The most parameters that are drawn for an outcome."""


def suggestion_page(suggestion: Suggestion, runs: pd.DataFrame | None) -> str:
    """Writes a page about suggested rows: tables, and what the model predicts around the first.

    Args:
        suggestion: The rows and the models.
        runs: The runs so far.

    Returns:
        The page as HTML, pictures included.

    Raises:
        ImportError: If matplotlib is missing.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_outcomes, read_tables, suggest_rows
        >>> space = SearchSpace.from_dict({"C": {"type": "float", "low": 0.1, "high": 10}})
        >>> old = DataFrame({"task": "monday", "C": [1.0, 3.0, 9.0], "loss": [0.5, 0.2, 0.4]})
        >>> suggestion = suggest_rows(read_tables(space, read_outcomes(), old))
        >>> suggestion_page(suggestion, None)[:15]
        '<!DOCTYPE html>'
    """
    parts = ["<h2>Next rows</h2>", _table(suggestion.rows), f"<p>{EXPLANATION}</p>"]
    for outcome in suggestion.tables.outcomes:
        if not outcome.is_objective or outcome.name not in suggestion.models:
            continue
        title = html.escape(outcome.name)
        goal = "large" if outcome.sign > 0 else "small"
        parts += [f"<h2>Around the first row: {title} ({goal} values are good)</h2>"]
        parts += _verdicts(suggestion.models[outcome.name])
        parts += [_image(figure) for figure in _slices(suggestion, outcome)]
        if runs is not None and outcome.name in runs.columns:
            picture = _image(_progress(runs[outcome.name], outcome))
            parts += [f"<h2>Runs so far: {title}</h2>", picture]
    if runs is not None:
        parts += ["<h2>All runs</h2>", _table(runs)]
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Next rows</title>'
        f"<style>{style}</style></head><body>\n{body}\n</body></html>\n"
    )


def _verdicts(model: Any) -> list[str]:
    """What this task's runs say of the old ones, and how well these predict one another."""
    parts = []
    with suppress(ValueError):  # a model without a report
        verdicts = transfer_report(model)["verdict"]
        named = ", ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())
        parts.append(f"<p>What the runs so far say of the old tasks: {html.escape(named)}.</p>")
    if can_be_calibrated(model):
        told = html.escape(str(calibrate(model.prior, type(model))))
        parts.append(f"<p>{told}</p>")
    return parts


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(index=False, border=0, float_format="{:.4g}".format, na_rep="")


def _slices(suggestion: Suggestion, outcome: Outcome) -> list[Any]:
    """Predictions along each parameter that is active in the first row, the others as there."""
    from matplotlib.figure import Figure

    figures = []
    space = suggestion.tables.space
    row = suggestion.rows[space.columns].iloc[[0]]
    for parameter in space.parameters[:MAX_PICTURES]:
        if isinstance(parameter, SimplexParameter) or row[parameter.name].isna().all():
            continue
        figure = Figure(figsize=(4.5, 3), layout="constrained")
        ax = figure.subplots()
        name = f"predicted {'logarithm of ' if outcome.log else ''}{outcome.name}"
        model, x = suggestion.models[outcome.name], suggestion.X[0]
        plot_slice(model, space, parameter.name, x, ax, outcome_name=name, goal=outcome.goal)
        value = row[parameter.name].item()
        if isinstance(value, int | float) and len(space.feature_indices[parameter.name]) == 1:
            ax.axvline(value, linestyle=":", color=BLACK)
        figures.append(figure)
    return figures


def _progress(values: pd.Series, outcome: Outcome) -> Any:
    """The outcomes in the table's order, and the best so far."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    numbers = pd.to_numeric(values, errors="coerce")
    finite = numbers.where(np.isfinite(numbers.to_numpy(dtype=float)))
    best = finite.cummax() if outcome.sign > 0 else finite.cummin()
    figure = Figure(figsize=(5, 3), layout="constrained")
    ax = figure.subplots()
    steps = range(1, len(values) + 1)
    ax.plot(steps, finite, "o", label="run")
    ax.step(steps, best.ffill(), where="post", label="best so far")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("run")
    ax.set_ylabel(outcome.name)
    if outcome.log:
        ax.set_yscale("log")
    ax.legend(frameon=False)
    return figure


def _image(figure: Any) -> str:
    """An image tag with the picture inside."""
    stored = io.BytesIO()
    figure.savefig(stored, format="png", dpi=110)
    return (
        f'<img alt="" src="data:image/png;base64,{base64.b64encode(stored.getvalue()).decode()}">'
    )
