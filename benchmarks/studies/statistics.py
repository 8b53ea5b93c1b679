"""Which differences between methods are more than luck."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

NUM_BOOTSTRAP = 10_000
LEVEL = 0.95


def mean_ranks(values: pd.DataFrame) -> pd.Series:
    """The mean rank of each method, one the best; methods that are equal share their ranks.

    Args:
        values: One row a case, one column a method; less is better.

    Returns:
        Mean ranks by method, the best first.
    """
    return values.rank(axis=1).mean().sort_values(kind="stable")


def friedman(values: pd.DataFrame) -> float:
    """The probability of ranks as different as these if all methods were equally good.

    Args:
        values: One row a case, one column a method.

    Returns:
        The p-value of Friedman's test; one for fewer than three methods or two cases,
        or if all are equal in every case.
    """
    if values.shape[1] < 3 or len(values) < 2:
        return 1.0
    if bool((values.nunique(axis=1) == 1).all()):
        return 1.0
    return float(stats.friedmanchisquare(*(values[method] for method in values)).pvalue)


def critical_difference(num_methods: int, num_cases: int) -> float:
    """By how much mean ranks of two methods must differ to tell them apart (Nemenyi's test).

    Args:
        num_methods: The number of methods that are ranked.
        num_cases: The number of cases.

    Returns:
        The difference, at the level of 5 % for all pairs together.
    """
    quantile = float(stats.studentized_range.ppf(LEVEL, num_methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(num_methods * (num_methods + 1) / (6 * num_cases))


def cliques(ranks: pd.Series, difference: float) -> list[tuple[float, float]]:
    """The longest stretches of mean ranks that cannot be told apart.

    Args:
        ranks: Mean ranks, the best first.
        difference: The critical difference.

    Returns:
        The ends of each stretch that holds two methods or more.
    """
    values = ranks.to_numpy()
    found: list[tuple[float, float]] = []
    for start in values:
        end = values[values <= start + difference].max()
        if end > start and (not found or end > found[-1][1]):
            found.append((float(start), float(end)))
    return found


def ratio_of_means(values: pd.DataFrame, reference: str, seed: int = 0) -> pd.DataFrame:
    """Each method's mean over that of a reference, with intervals of a paired bootstrap.

    Args:
        values: One row a case, one column a method.
        reference: The method to compare with.
        seed: The seed of the resampling.

    Returns:
        One row a method; columns `ratio`, `low` and `high`, the ends of the central 95 %.
    """
    rows = np.random.default_rng(seed).integers(len(values), size=(NUM_BOOTSTRAP, len(values)))
    drawn = {method: values[method].to_numpy()[rows].mean(axis=1) for method in values}
    tail = (1 - LEVEL) / 2
    table = {}
    for method in values:
        low, high = np.nanquantile(_over(drawn[method], drawn[reference]), [tail, 1 - tail])
        ratio = _over(values[method].mean(), values[reference].mean())
        table[method] = {"ratio": float(ratio), "low": float(low), "high": float(high)}
    return pd.DataFrame.from_dict(table, orient="index")


def _over(values: np.ndarray | float, others: np.ndarray | float) -> np.ndarray:
    """A ratio; two zeros are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.equal(values, 0) & np.equal(others, 0), 1.0, np.divide(values, others))
