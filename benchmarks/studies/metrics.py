"""Computes regrets from evaluations, and summaries of regrets."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

RUN = ["problem", "seed", "method"]


def incumbents(results: pd.DataFrame) -> pd.DataFrame:
    """Computes the best value so far of each run after each evaluation.

    Args:
        results: The table of `run_study`.

    Returns:
        A table with one row per run (index `problem`, `seed`, `method`) and one column per
        evaluation (from 1). A run that ended early keeps its last value. Values are NaN before the
        first finite value of a run.
    """
    values = results.pivot(index=RUN, columns="evaluation", values="value").astype(float)
    planned = results.set_index(RUN).index.unique()  # pivot sorts the methods
    return values.cummax(axis=1).ffill(axis=1).reindex(planned)


def regrets(results: pd.DataFrame, best_known: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Computes regrets: the best known value minus the best value so far.

    Args:
        results: The table of `run_study`.
        best_known: The best known value of each problem; by default the value in `results`, for
            each seed. If a run found a better value, the better value counts for all methods.

    Returns:
        A table like the result of `incumbents`, without negative values.
    """
    found = incumbents(results)
    if best_known is None:
        of_run = results.set_index(RUN)["best_known"].astype(float).groupby(RUN[:2]).max()
        best = found.max(axis=1).groupby(RUN[:2]).max().combine(of_run, np.fmax)
        return -found.sub(_of_runs(best, found), axis=0)
    best = found.max(axis=1).groupby("problem").max()
    best = best.combine(pd.Series(best_known), max).loc[best.index]
    return -found.sub(best, axis=0, level="problem")


def normalized(
    regret: pd.DataFrame, results: pd.DataFrame, scale: str, at_most: float | None = None
) -> pd.DataFrame:
    """Divides regrets by the distance from a problem's best value to its worst or median value.

    Args:
        regret: The result of `regrets`, with one row per run.
        results: The table of `run_study`.
        scale: `"worst"` or `"median"`: the value with regret one. If this value is unknown, the
            worst first value of all runs has regret one.
        at_most: The largest normalized regret; larger regrets are clipped.

    Returns:
        A table of the same form as `regret`.
    """
    about = results.groupby(RUN[:2])[["best_known", scale]].first().astype(float)
    size = (about["best_known"] - about[scale]).replace([0.0, np.inf, -np.inf], np.nan)
    size = size.fillna(regret.max(axis=1).groupby(RUN[:2]).max())
    return regret.div(_of_runs(size, regret).replace(0.0, 1.0), axis=0).clip(upper=at_most)


def complete(regret: pd.DataFrame) -> pd.DataFrame:
    """Selects the runs on those problems and seeds that all methods have finished.

    Before its first finite value, a run gets the largest regret of all runs on the same problem and
    seed.

    Args:
        regret: A table of regrets, with one row per run.

    Returns:
        The selected rows, without missing values.
    """
    count = regret.groupby(RUN[:2]).size()
    whole = _of_runs(count, regret) == regret.index.unique("method").size
    kept = regret[whole.to_numpy()]
    largest = _of_runs(kept.max(axis=1).groupby(RUN[:2]).max(), kept)
    return kept.apply(lambda column: column.fillna(largest))


def _of_runs(of_seed: pd.Series, like: pd.DataFrame) -> pd.Series:
    """Repeats values of each problem and seed for each run."""
    cases = pd.MultiIndex.from_tuples([run[:2] for run in like.index], names=RUN[:2])
    return pd.Series(of_seed.reindex(cases).to_numpy(), like.index)


def average(regret: pd.DataFrame) -> pd.DataFrame:
    """Averages each method's regret over seeds, then over problems.

    Args:
        regret: The result of `regrets`, with one row per run.

    Returns:
        A table with one row per method, in order of first appearance, and one column per
        evaluation.
    """
    of_problem = regret.groupby(["problem", "method"], sort=False).mean()
    return of_problem.groupby("method", sort=False).mean()


def standard_error(regret: pd.DataFrame) -> pd.DataFrame:
    """Computes the standard error of each method's mean over the seeds of each problem.

    Args:
        regret: A table of regrets, with one row per run.

    Returns:
        A table with one row per problem and method, and one column per evaluation. Values are NaN
        for a single seed.
    """
    return regret.groupby(["problem", "method"], sort=False).sem()


def error_of_average(regret: pd.DataFrame) -> pd.DataFrame:
    """Computes the standard errors of means over problems, or over the seeds of a single problem.

    Args:
        regret: A table of regrets, with one row per run.

    Returns:
        A table with one row per method and one column per evaluation.
    """
    of_problem = regret.groupby(["problem", "method"], sort=False).mean()
    if of_problem.index.unique("problem").size == 1:
        return average(standard_error(regret))
    return of_problem.groupby("method", sort=False).sem()


def evaluations_to_reach(regret: pd.DataFrame, reference: str) -> pd.Series:
    """Counts the evaluations that each run needs to reach a reference method's final value.

    Args:
        regret: A table of regrets, with one row per run.
        reference: The reference method. Its final value is taken on the same problem with the same
            seed.

    Returns:
        The number of evaluations of each run; infinite if the run does not reach the value.
    """
    goal = regret.iloc[:, -1].unstack("method")[reference]
    of_run = goal.reindex(pd.MultiIndex.from_tuples([run[:2] for run in regret.index]))
    reached = regret.le(of_run.to_numpy(), axis=0)
    first = reached.idxmax(axis=1).astype(float)
    return first.where(reached.any(axis=1), np.inf)


def first_quarter(regret: pd.DataFrame) -> pd.DataFrame:
    """Selects the regrets of the first quarter of the evaluations, rounded up."""
    return regret.iloc[:, : -(-regret.shape[1] // 4)]


def areas(regret: pd.DataFrame) -> pd.DataFrame:
    """Computes the area under each regret curve, which is the mean regret over evaluations.

    Args:
        regret: The result of `complete`, with one row per run.

    Returns:
        A table with one row per problem and seed, and one column per method.
    """
    order = regret.index.unique("method")
    return regret.mean(axis=1).unstack("method")[list(order)]


def failures(results: pd.DataFrame) -> pd.Series:
    """Counts the runs of each method that ended with an error."""
    return results.groupby("method", sort=False)["error"].count()
