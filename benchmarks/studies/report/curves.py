"""Draws regret curves."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.studies.metrics import average, error_of_average
from benchmarks.styles import style_of

PANEL_WIDTH, PANEL_HEIGHT = 3.4, 2.8
MAX_COLUMNS = 3
#: Maximum number of problems with a panel of their own.
MAX_PROBLEMS = 8
DPI = 110
FLOOR = 1e-3  # smallest shown share of a panel's largest regret, for the logarithmic axis


class Curves(NamedTuple):
    """Means and standard errors of regrets, one row per method, one column per evaluation."""

    mean: pd.DataFrame
    error: pd.DataFrame


def regret_figure(regret: pd.DataFrame, path: Path, title: str, ylabel: str) -> None:
    """Draws regret curves: the mean over problems, and up to a few single problems.

    Lines are means over seeds. Bands are one standard error to either side. The standard error is
    computed over seeds, or over problems in the panel of the mean.

    Args:
        regret: The result of `metrics.regrets`, with one row per run.
        path: The file of the picture. The folder is created if necessary.
        title: The title of the picture.
        ylabel: The kind of regret, and its unit.
    """
    panels = _panels(regret)
    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(
        figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 1.0), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, (name, curves) in zip(axes, panels.items(), strict=False):
        _draw(axis, name, curves)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(title)
    figure.supylabel(ylabel)
    lines: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, handle)
    figure.legend(
        list(lines.values()),
        list(lines),
        loc="outside lower center",
        ncols=min(len(lines), 2 * columns),
        frameon=False,
        fontsize="small",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)


def _panels(regret: pd.DataFrame) -> dict[str, Curves]:
    """Returns the curves of each panel, by the title of the panel."""
    count = regret.index.unique("problem").size
    panels = {f"mean over {count} tasks": regret} if count > 1 else {}
    if count <= MAX_PROBLEMS:
        panels |= {str(name): rows for name, rows in regret.groupby("problem", sort=False)}
    return {name: Curves(average(rows), error_of_average(rows)) for name, rows in panels.items()}


def _draw(axis: Axes, title: str, curves: Curves) -> None:
    floor = FLOOR * float(np.nanmax(curves.mean))
    for method in map(str, curves.mean.index):
        values, error = curves.mean.loc[method], curves.error.loc[method]
        style = style_of(method)
        axis.plot(
            values.index,
            values.clip(lower=floor),
            label=method,
            color=style.color,
            linestyle=style.line,
            marker=style.marker,
            markersize=3.0,
            markevery=max(len(values) // 10, 1),
            linewidth=1.2,
        )
        axis.fill_between(
            values.index,
            (values - error).clip(lower=floor),
            (values + error).clip(lower=floor),
            color=style.color,
            alpha=0.12,
            linewidth=0,
        )
    axis.set_yscale("log")
    axis.set_xlabel("evaluations")
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
