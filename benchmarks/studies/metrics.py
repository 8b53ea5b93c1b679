"""From evaluations to regrets, and from regrets to what a reader asks."""

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


def regrets(results: pd.DataFrame, best_known: Mapping[str, float] | None = None) -> pd.DataFrame:
    """How far the best value found so far is from the best value known.

    Args:
        results: The table of `run_study`.
        best_known: The best value of each problem known beforehand; by default what the runs say,
            seed by seed. Where a run found a better one, that one counts, for all methods.

    Returns:
        As `incumbents`, not negative.
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
    """Regret in units of the distance from a problem's best value to a middling or bad one.

    Args:
        regret: One row a run, as `regrets` gives it.
        results: The table of `run_study`.
        scale: `"worst"` or `"median"`: what has the regret one. Where it is not known, what the
            worst run has found first.
        at_most: The largest value that counts.

    Returns:
        The like of `regret`.
    """
    about = results.groupby(RUN[:2])[["best_known", scale]].first().astype(float)
    size = (about["best_known"] - about[scale]).replace([0.0, np.inf, -np.inf], np.nan)
    size = size.fillna(regret.max(axis=1).groupby(RUN[:2]).max())
    return regret.div(_of_runs(size, regret).replace(0.0, 1.0), axis=0).clip(upper=at_most)


def complete(regret: pd.DataFrame) -> pd.DataFrame:
    """The runs on problems and seeds that all methods have finished.

    Runs that have found nothing yet count with the largest regret of any on the same problem and
    seed.

    Args:
        regret: One row a run.

    Returns:
        Some of the rows, no value missing.
    """
    count = regret.groupby(RUN[:2]).size()
    whole = _of_runs(count, regret) == regret.index.unique("method").size
    kept = regret[whole.to_numpy()]
    largest = _of_runs(kept.max(axis=1).groupby(RUN[:2]).max(), kept)
    return kept.apply(lambda column: column.fillna(largest))


def _of_runs(of_seed: pd.Series, like: pd.DataFrame) -> pd.Series:
    """What holds for a problem and seed, run by run."""
    cases = pd.MultiIndex.from_tuples([run[:2] for run in like.index], names=RUN[:2])
    return pd.Series(of_seed.reindex(cases).to_numpy(), like.index)


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
        One row a problem and method, one column an evaluation; NaN for a single seed.
    """
    return regret.groupby(["problem", "method"], sort=False).sem()


def error_of_average(regret: pd.DataFrame) -> pd.DataFrame:
    """The standard error of each method's mean over problems, or over the seeds of the only one.

    Args:
        regret: One row a run.

    Returns:
        One row a method, one column an evaluation.
    """
    of_problem = regret.groupby(["problem", "method"], sort=False).mean()
    if of_problem.index.unique("problem").size == 1:
        return average(standard_error(regret))
    return of_problem.groupby("method", sort=False).sem()


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


def first_quarter(regret: pd.DataFrame) -> pd.DataFrame:
    """The regrets of the first quarter of the evaluations, rounded up."""
    return regret.iloc[:, : -(-regret.shape[1] // 4)]


def areas(regret: pd.DataFrame) -> pd.DataFrame:
    """The area under each regret curve: its mean over the evaluations.

    Args:
        regret: One row a run, as `complete` gives it.

    Returns:
        One row a problem and seed, one column a method.
    """
    order = regret.index.unique("method")
    return regret.mean(axis=1).unstack("method")[list(order)]


def failures(results: pd.DataFrame) -> pd.Series:
    """The number of each method's runs that an error ended."""
    return results.groupby("method", sort=False)["error"].count()
