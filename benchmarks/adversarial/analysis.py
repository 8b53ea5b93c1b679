"""From runs to the answers: regrets, areas under their curves, bounds by paired bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from benchmarks.markdown import markdown_table
from benchmarks.studies import TableProblem
from benchmarks.studies.metrics import regrets

PLAIN, TRANSFER, GUARDED = "plain GP", "ScaML-GP", "guarded"
AT = (5, 10, 20, 40)
NUM_BOOTSTRAP = 10_000
STARTS = (0, 3)
"""Areas count from the first evaluation, and after as many as the plain GP draws at random."""


def scaled_regrets(results: pd.DataFrame, problems: Sequence[TableProblem]) -> pd.DataFrame:
    """Computes regrets as shares of the range of each problem's values.

    Args:
        results: The table of runs.
        problems: The problems.

    Returns:
        One row a run (index ``group``, ``history``, ``case``, ``method``), one column an
        evaluation. A problem's name is its group (a family or a table), maybe the history, and the
        case (a seed or a target). The method without transfer counts for every history of a case.
    """
    best = {problem.name: problem.best_known for problem in problems}
    spread = {p.name: float(p.Y.max() - p.Y.min()) for p in problems}
    regret = regrets(results, best)
    names = regret.index.get_level_values("problem")
    regret = regret.div([spread[name] for name in names], axis=0)
    parts = [name.split(" ") for name in names]
    index = pd.DataFrame(
        {
            "group": [part[0] for part in parts],
            "history": [part[1] if len(part) == 3 else "other tasks" for part in parts],
            "case": [part[-1] for part in parts],
            "method": regret.index.get_level_values("method"),
        }
    )
    regret.index = pd.MultiIndex.from_frame(index)
    return _with_plain_everywhere(regret)


def _with_plain_everywhere(regret: pd.DataFrame) -> pd.DataFrame:
    bare = regret[regret.index.get_level_values("history") == "none"]
    rest = regret.drop(index=bare.index)
    copies = []
    for group, rows in bare.groupby(level="group", sort=False):
        of_group = rest[rest.index.get_level_values("group") == group]
        for history in of_group.index.unique("history"):
            copy = rows.rename(index={"none": history}, level="history")
            copies.append(copy)
    return pd.concat([*copies, rest])


def areas(regret: pd.DataFrame, start: int = 0) -> pd.DataFrame:
    """The area under each regret curve: its mean over the evaluations after the first ``start``.

    Args:
        regret: What :func:`scaled_regrets` gave.
        start: The number of evaluations to leave out.

    Returns:
        One row a case (index ``group``, ``history``, ``case``) that every method has finished, one
        column a method.
    """
    return regret.iloc[:, start:].mean(axis=1).unstack("method").dropna()


def bootstrap(
    area: pd.DataFrame, statistic: Callable[[Mapping[str, np.ndarray]], np.ndarray], seed: int = 0
) -> tuple[float, float, float]:
    """Estimates a statistic of mean areas, with its central 95 % interval over paired cases.

    Args:
        area: One row a case, one column a method.
        statistic: A function of the methods' mean areas.
        seed: The seed of the resampling.

    Returns:
        The statistic, and the ends of the interval.
    """
    rows = np.random.default_rng(seed).integers(len(area), size=(NUM_BOOTSTRAP, len(area)))
    drawn = {method: area[method].to_numpy()[rows].mean(axis=1) for method in area.columns}
    mean = {method: np.asarray(area[method].mean()) for method in area.columns}
    with np.errstate(divide="ignore", invalid="ignore"):  # where there is no regret at all
        low, high = np.quantile(statistic(drawn), [0.025, 0.975])
        return float(statistic(mean)), float(low), float(high)


def kept_gain(area: Mapping[str, np.ndarray]) -> np.ndarray:
    """The part of the transfer model's gain over the plain GP that the guarded model keeps."""
    return (area[PLAIN] - area[GUARDED]) / (area[PLAIN] - area[TRANSFER])


def relative_to_plain(area: Mapping[str, np.ndarray]) -> np.ndarray:
    """The guarded model's area as a multiple of the plain GP's."""
    return area[GUARDED] / area[PLAIN]


def regret_table(regret: pd.DataFrame) -> str:
    """Lays out regrets after some evaluations, means over the cases, in per cent of the range.

    Args:
        regret: What :func:`scaled_regrets` gave.

    Returns:
        A markdown table.
    """
    by_method = regret.sort_index().groupby(level=["group", "history", "method"])
    mean, median = (100 * table.clip(lower=0.0) for table in (by_method.mean(), by_method.median()))
    evaluations = [at for at in AT if at in mean.columns]
    rows = [
        [" ".join(map(str, label[:2])), str(label[2])]
        + [f"{mean.loc[label, at]:.2f} ({median.loc[label, at]:.2f})" for at in evaluations]
        for label in mean.index
    ]
    return markdown_table(["problem", "method", *(f"after {at}" for at in evaluations)], rows)


def bounds_table(regret: pd.DataFrame, start: int) -> str:
    """Lays out areas and the two bounds, with 95 % intervals of a paired bootstrap.

    Args:
        regret: What :func:`scaled_regrets` gave.
        start: The number of evaluations to leave out.

    Returns:
        A markdown table.
    """
    area = areas(regret, start)
    rows = []
    for (group, history), of_problem in area.groupby(level=["group", "history"], sort=False):
        kept = "{:.2f} [{:.2f}, {:.2f}]".format(*bootstrap(of_problem, kept_gain))
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*bootstrap(of_problem, relative_to_plain))
        means = [f"{100 * of_problem[method].mean():.2f}" for method in area.columns]
        rows.append([f"{group} {history}", str(len(of_problem)), *means, ratio, kept])
    header = ["problem", "cases", *area.columns, "guarded / plain", "gain kept"]
    return markdown_table(header, rows)
