"""Regret curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.studies.metrics import average, error_of_average
from benchmarks.studies.report.groups import panels_of
from benchmarks.styles import style_of

PANEL_WIDTH, PANEL_HEIGHT = 3.4, 2.8
MAX_COLUMNS = 3
DPI = 110
FLOOR = 1e-3  # of a panel's largest regret: a logarithmic axis has no zero


def regret_figure(regret: pd.DataFrame, path: Path, title: str, ylabel: str) -> None:
    """Draws regret curves, a panel a problem and one of the mean over problems.

    Lines are means over seeds; bands are one standard error to either side, over seeds, and over
    problems where a panel shows their mean.

    Args:
        regret: One row a run, as `metrics.regrets` gives it.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
        ylabel: What the regret is, and its unit.
    """
    draw: dict[str, Callable[[Axes], None]] = {
        name: partial(_draw, title=name, curves=curves) for name, curves in _panels(regret).items()
    }
    save_panels(draw, path, title, ylabel)


def mean_figure(regret: pd.DataFrame, path: Path, title: str, ylabel: str) -> None:
    """Draws the mean over problems, one standard error to either side, a panel a kind of method.

    Args:
        regret: One row a run, as `metrics.complete` gives it.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
        ylabel: What the regret is, and its unit.
    """
    mean, error = average(regret), error_of_average(regret)
    curves = Curves(mean, mean - error, mean + error)
    save_panels(_by_kind(curves), path, title, ylabel)


def median_figure(regret: pd.DataFrame, path: Path, title: str, ylabel: str) -> None:
    """Draws the median over runs with the band from the 20th to the 80th percentile.

    Args:
        regret: One row a run, as `metrics.complete` gives it.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
        ylabel: What the regret is, and its unit.
    """
    by_method = regret.groupby("method", sort=False)
    curves = Curves(*(by_method.quantile(share) for share in (0.5, 0.2, 0.8)))
    save_panels(_by_kind(curves), path, title, ylabel)


class Curves(NamedTuple):
    """Lines and their bands, one row a method, one column an evaluation."""

    line: pd.DataFrame
    low: pd.DataFrame
    high: pd.DataFrame

    def only(self, names: list[str]) -> Curves:
        """Some of the methods."""
        return Curves(*(part.loc[names] for part in self))


def save_panels(
    panels: Mapping[str, Callable[[Axes], None]], path: Path, title: str, ylabel: str
) -> None:
    """Draws panels side by side, with one legend, and saves them.

    Args:
        panels: What draws each panel, by its name.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
        ylabel: The label that all panels share.
    """
    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(
        figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 1.0), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, draw in zip(axes, panels.values(), strict=False):
        draw(axis)
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


def _by_kind(curves: Curves) -> dict[str, Callable[[Axes], None]]:
    return {
        title: partial(_draw, title=title, curves=curves.only(names))
        for title, names in panels_of(list(curves.line.index)).items()
    }


def _panels(regret: pd.DataFrame) -> dict[str, Curves]:
    """Means with standard errors by panel title, methods × evaluations each."""
    count = regret.index.unique("problem").size
    panels = {f"mean over {count} tasks": regret} if count > 1 else {}
    panels |= {str(name): rows for name, rows in regret.groupby("problem", sort=False)}
    pairs = {name: (average(rows), error_of_average(rows)) for name, rows in panels.items()}
    return {
        name: Curves(line, line - around.reindex(line.index), line + around.reindex(line.index))
        for name, (line, around) in pairs.items()
    }


def _draw(axis: Axes, title: str, curves: Curves) -> None:
    floor = FLOOR * float(np.nanmax(curves.line))
    for method in map(str, curves.line.index):
        values, style = curves.line.loc[method], style_of(method)
        axis.plot(
            curves.line.columns,
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
            curves.line.columns,
            curves.low.loc[method].clip(lower=floor),
            curves.high.loc[method].clip(lower=floor),
            color=style.color,
            alpha=0.12,
            linewidth=0,
        )
    axis.set_yscale("log")
    axis.set_xlabel("evaluations")
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
