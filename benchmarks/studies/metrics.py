"""From evaluations to regrets, and from regrets to what a reader asks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

RUN = ["problem", "seed", "method"]


def incumbents(results: pd.DataFrame) -> pd.DataFrame:
    """The best value found so far.

    Args:
        results: The table of `run_study`.

    Returns:
        One row a run (index `problem`, `seed`, `method`), one column an evaluation (from 1). A run
        that ended early keeps its last value; before the first finite value there is NaN.
    """
    values = results.pivot(index=RUN, columns="evaluation", values="value").astype(float)
    planned = results.set_index(RUN).index.unique()  # pivot has sorted them
    return values.cummax(axis=1).ffill(axis=1).reindex(planned)


def regrets(results: pd.DataFrame, best_known: Mapping[str, float]) -> pd.DataFrame:
    """How far the best value found so far is from the best value known.

    Args:
        results: The table of `run_study`.
        best_known: The best value of each problem known beforehand. Where a run found a better one,
            that one counts, for all methods.

    Returns:
        As `incumbents`, not negative.
    """
    found = incumbents(results)
    best = found.max(axis=1).groupby("problem").max()
    best = best.combine(pd.Series(best_known), max).loc[best.index]
    return -found.sub(best, axis=0, level="problem")


def average(regret: pd.DataFrame) -> pd.DataFrame:
    """Each method's mean over seeds, then over problems, so that each problem counts the same.

    Args:
        regret: One row a run, as `regrets` gives it.

    Returns:
        One row a method, in order of first appearance, one column an evaluation.
    """
    of_problem = regret.groupby(["problem", "method"], sort=False).mean()
    return of_problem.groupby("method", sort=False).mean()


def standard_error(regret: pd.DataFrame) -> pd.DataFrame:
    """The standard error of each method's mean over the seeds of one problem.

    Args:
        regret: One row a run.

    Returns:
        One row a problem and method, one column an evaluation; zero for a single seed.
    """
    return regret.groupby(["problem", "method"], sort=False).sem().fillna(0.0)


def evaluations_to_reach(regret: pd.DataFrame, reference: str) -> pd.Series:
    """How many evaluations each run needs to be as good as a reference method is at its end.

    Args:
        regret: One row a run.
        reference: The method whose final value on the same problem, with the same seed, is to be
            reached.

    Returns:
        The number of each run, infinite if it was never as good.
    """
    goal = regret.iloc[:, -1].unstack("method")[reference]
    of_run = goal.reindex(pd.MultiIndex.from_tuples([run[:2] for run in regret.index]))
    reached = regret.le(of_run.to_numpy(), axis=0)
    first = reached.idxmax(axis=1).astype(float)
    return first.where(reached.any(axis=1), np.inf)


def failures(results: pd.DataFrame) -> pd.Series:
    """The number of each method's runs that an error ended."""
    return results.groupby("method", sort=False)["error"].count()
