"""What a study found, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.markdown import markdown_table
from benchmarks.studies.metrics import average, evaluations_to_reach, standard_error
from botorch_transfer.palette import style_of

PANEL_WIDTH, PANEL_HEIGHT = 3.4, 2.8
MAX_COLUMNS = 3
FLOOR = 1e-3  # of a panel's largest regret: a logarithmic axis has no zero


def regret_table(regret: pd.DataFrame, at: Sequence[int], reference: str | None = None) -> str:
    """Mean regrets after some numbers of evaluations.

    Args:
        regret: One row a run, as `metrics.regrets` gives it.
        at: The numbers of evaluations.
        reference: The method whose final value the last two columns ask for: how many evaluations
            the median run needs to reach it, and the share of runs that do.

    Returns:
        A markdown table, one row a method.
    """
    mean = average(regret)
    header = ["method", *(f"after {n}" for n in at)]
    rows = [[method, *(f"{mean.loc[method, n]:.4f}" for n in at)] for method in mean.index]
    if reference is not None:
        header += [f"evaluations to {reference}'s final value", "runs that reach it"]
        needed = evaluations_to_reach(regret, reference).groupby("method")
        for row in rows:
            row += _reaching(needed.get_group(row[0]), last=int(regret.columns[-1]))
    return markdown_table(header, rows)


def _reaching(needed: pd.Series, last: int) -> list[str]:
    median = needed.median()
    number = f"{median:g}" if np.isfinite(median) else f"> {last}"
    return [number, f"{np.isfinite(needed).mean():.0%}"]


def regret_figure(regret: pd.DataFrame, path: Path, title: str, ylabel: str) -> None:
    """Draws regret curves, a panel a problem and one of the mean over problems.

    Lines are means over seeds, bands one standard error to either side.

    Args:
        regret: One row a run, as `metrics.regrets` gives it.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
        ylabel: What the regret is, and its unit.
    """
    panels = _panels(regret)
    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, (name, (mean, error)) in zip(axes, panels.items(), strict=False):
        _draw(axis, name, mean, error)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(title)
    figure.supylabel(ylabel)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _panels(regret: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Means and standard errors by panel title, methods × evaluations each."""
    mean, error = average(regret), standard_error(regret)
    count = regret.index.unique("problem").size
    of_mean = error.pow(2).groupby("method", sort=False).sum().pow(0.5) / count
    panels = {f"mean over {count} tasks": (mean, of_mean)} if count > 1 else {}
    for name, rows in regret.groupby("problem", sort=False):
        panels[str(name)] = (average(rows), average(error.loc[[name]]))
    return panels


def _draw(axis: Axes, title: str, mean: pd.DataFrame, error: pd.DataFrame) -> None:
    floor = FLOOR * float(np.nanmax(mean))
    for (method, values), (_, around) in zip(
        mean.iterrows(), error.reindex(mean.index).iterrows(), strict=True
    ):
        style = style_of(str(method))
        axis.plot(
            mean.columns,
            values.clip(lower=floor),
            label=method,
            color=style.color,
            linestyle=style.line,
            marker=style.marker,
            markersize=3.5,
        )
        axis.fill_between(
            mean.columns,
            (values - around).clip(lower=floor),
            (values + around).clip(lower=floor),
            color=style.color,
            alpha=0.15,
            linewidth=0,
        )
    axis.set_yscale("log")
    axis.set_xlabel("evaluations")
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
