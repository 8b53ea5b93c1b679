"""Performance profiles: which share of the runs is good enough, and when."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from benchmarks.studies.report.curves import save_panels
from benchmarks.studies.report.groups import panels_of
from benchmarks.styles import style_of

THRESHOLDS = (0.1, 0.02)


def solved(regret: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """The share of each method's runs whose regret is at most a threshold.

    Args:
        regret: One row a run.
        threshold: The largest regret that is good enough.

    Returns:
        One row a method, one column an evaluation.
    """
    return regret.le(threshold).groupby("method", sort=False).mean()


def profile_figure(regret: pd.DataFrame, path: Path, title: str) -> None:
    """Draws the shares of runs that are good enough, a panel a kind of method and threshold.

    Args:
        regret: One row a run, normalized.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
    """
    panels = {}
    kinds = panels_of(list(regret.index.unique("method")))
    for threshold in THRESHOLDS:
        shares = solved(regret, threshold)
        for kind, names in kinds.items():
            name = f"{kind}: at most {threshold:g}"
            panels[name] = partial(_draw, title=name, shares=shares.loc[names])
    save_panels(panels, path, title, "share of runs")


def _draw(axis: Axes, title: str, shares: pd.DataFrame) -> None:
    for method, values in shares.iterrows():
        style = style_of(str(method))
        axis.step(
            shares.columns,
            values,
            where="post",
            label=method,
            color=style.color,
            linestyle=style.line,
            linewidth=1.3,
        )
    axis.set_ylim(0, 1)
    axis.set_xlabel("evaluations")
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3, linewidth=0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
