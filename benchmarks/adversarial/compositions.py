"""What other rules would have reached: curves composed of runs that were made."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.adversarial.analysis import (
    GUARDED,
    PLAIN,
    STARTS,
    TRANSFER,
    areas,
    bootstrap,
    kept_gain,
    relative_to_plain,
)
from benchmarks.markdown import markdown_table

HELPFUL = ("helpful", "other tasks")
SWITCHES = (1, 2)
"""After how many evaluations the oracle, which knows that the history misleads, gives it up."""


def followed_by(regret: pd.DataFrame, first: str, later: str, num_first: int) -> pd.DataFrame:
    """Puts the first evaluations of one method before all of another one's run.

    What the second would learn from the first points is left out.

    Args:
        regret: What :func:`~.analysis.scaled_regrets` gave.
        first: The method whose run comes first.
        later: The method whose run comes then, from its own first evaluation on.
        num_first: The number of evaluations to put first.

    Returns:
        One row a case (index ``group``, ``history``, ``case``), one column an evaluation.
    """
    runs = pd.DataFrame(regret.xs(later, level="method"))
    before = pd.DataFrame(regret.xs(first, level="method")).reindex(runs.index)
    before = before.iloc[:, :num_first]
    after = runs.iloc[:, : regret.shape[1] - num_first]
    if num_first:
        after = after.clip(upper=before.iloc[:, -1], axis=0)
    values = np.hstack([before.to_numpy(), after.to_numpy()])
    return pd.DataFrame(values, runs.index, regret.columns)


def hedged(regret: pd.DataFrame, num_random: int) -> pd.DataFrame:
    """Puts the plain GP's first evaluations, which are random, before the guarded model's run.

    What the guarded model would learn from the random points is left out, so the curves are bounds
    from above.

    Args:
        regret: What :func:`~.analysis.scaled_regrets` gave.
        num_random: The number of evaluations to put first, at most as many as are random.

    Returns:
        A table like it, with the guarded model's rows replaced.
    """
    composed = followed_by(regret, PLAIN, GUARDED, num_random)
    composed = pd.concat({GUARDED: composed}, names=["method"])
    composed = composed.reorder_levels(list(map(str, regret.index.names)))
    return pd.concat([regret.drop(index=GUARDED, level="method"), composed])


def hedging_table(regret: pd.DataFrame) -> str:
    """Lays out what random first evaluations cost with good history, and save with bad one.

    Args:
        regret: What :func:`~.analysis.scaled_regrets` gave.

    Returns:
        A markdown table: the part of the gain kept with helpful history, and the guarded model's
        area over the plain GP's with the others.
    """
    area = {k: areas(hedged(regret, k)) for k in range(max(STARTS) + 1)}
    rows = []
    for (group, history), of_problem in area[0].groupby(level=["group", "history"], sort=False):
        statistic = kept_gain if history in HELPFUL else relative_to_plain
        what = "gain kept" if statistic is kept_gain else "guarded / plain"
        values = [
            float(statistic({name: a.loc[of_problem.index, name].mean() for name in a.columns}))
            for a in area.values()
        ]
        rows.append([f"{group} {history}: {what}", *(f"{value:.2f}" for value in values)])
    return markdown_table(["random evaluations first", *map(str, area)], rows)


def oracle_table(regret: pd.DataFrame) -> str:
    """Lays out what a rule could reach at best whose first evaluation follows the history.

    Args:
        regret: What :func:`~.analysis.scaled_regrets` gave.

    Returns:
        A markdown table for the histories that may mislead, areas over the plain GP's: the guarded
        model's; that of the transfer model's first evaluation alone, were the optimum found by the
        second, which no rule can undercut; that of an oracle which gives up the transfer model
        after it, and after two, for the plain GP with its random points.
    """
    area = areas(regret)
    oracles = {
        f"plain GP after {k}": followed_by(regret, TRANSFER, PLAIN, k).mean(axis=1)
        for k in SWITCHES
    }
    first = pd.DataFrame(regret.xs(TRANSFER, level="method")).iloc[:, 0] / regret.shape[1]
    columns = {"first evaluation alone": first, **oracles}
    rows = []
    for (group, history), of_problem in area.groupby(level=["group", "history"], sort=False):
        if history in HELPFUL:
            continue
        row = ["{:.2f} [{:.2f}, {:.2f}]".format(*bootstrap(of_problem, relative_to_plain))]
        for values in columns.values():
            bound = of_problem.assign(**{GUARDED: values.reindex(of_problem.index)})
            row.append("{:.2f} [{:.2f}, {:.2f}]".format(*bootstrap(bound, relative_to_plain)))
        rows.append([f"{group} {history}", *row])
    return markdown_table(["problem", "guarded / plain", *columns], rows)
