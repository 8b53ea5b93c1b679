"""Mean ranks, with what cannot be told apart joined by a bar."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.studies.report.curves import DPI
from benchmarks.studies.statistics import (
    cliques,
    critical_difference,
    friedman,
    mean_ranks,
    of_cases,
)
from benchmarks.styles import style_of


def rank_sentence(values: pd.DataFrame) -> str:
    """Says what Friedman's and Nemenyi's tests find.

    Args:
        values: One row a problem and seed, one column a method; less is better.

    Returns:
        A sentence.
    """
    cases_of = of_cases(values)
    ranks, cases = mean_ranks(cases_of), len(cases_of)
    unit = "cases" if cases_of is values else "targets, means over their seeds"
    difference = critical_difference(len(ranks), cases)
    first = ranks[ranks <= ranks.iloc[0] + difference].index
    best = ", ".join(f"{name} {ranks[name]:.1f}" for name in first)
    return (
        f"Mean ranks of the areas over {cases} {unit} (Friedman's p = {friedman(cases_of):.1g}): "
        f"two methods differ if their ranks do by {difference:.1f} (Nemenyi, 5 %). Not told apart "
        f"from the first: {best}."
    )


def rank_figure(values: pd.DataFrame, path: Path, title: str) -> None:
    """Draws mean ranks, and bars over those that differ by less than the critical difference.

    Args:
        values: One row a problem and seed, one column a method; less is better.
        path: Where to save the picture; its folder is made.
        title: The picture's title.
    """
    cases = of_cases(values)
    ranks = mean_ranks(cases)
    difference = critical_difference(len(ranks), len(cases))
    bars = cliques(ranks, difference)
    figure = Figure(figsize=(6.5, 0.24 * len(ranks) + 0.16 * len(bars) + 1.4), layout="constrained")
    axis = figure.subplots()
    for row, (method, rank) in enumerate(ranks.items()):
        style = style_of(str(method))
        axis.plot(rank, row, color=style.color, marker=style.marker, markersize=7)
        axis.annotate(f"  {method} {rank:.1f}", (rank, row), va="center", fontsize="small")
    for number, (start, end) in enumerate(bars, start=1):
        axis.plot([start, end], [-0.7 * number] * 2, color="black", linewidth=2)
    axis.set_ylim(len(ranks), -0.7 * (len(bars) + 1))
    axis.set_xlim(1, float(ranks.max()) + 0.25 * float(ranks.max()))
    axis.set_yticks([])
    axis.set_xlabel(f"mean rank of the area; critical difference {difference:.1f}")
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3, axis="x", linewidth=0.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
