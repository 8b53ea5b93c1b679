"""Tests and intervals for differences between methods.

Seeds of one problem are not independent problems. If a study has several problems, methods are
ranked by means over seeds, and the bootstrap draws problems first, then seeds of each problem.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

NUM_BOOTSTRAP = 10_000
LEVEL = 0.95


def of_cases(values: pd.DataFrame) -> pd.DataFrame:
    """Returns the independent cases of a test: problems, or the seeds of a single problem.

    Args:
        values: A table with one row per problem and seed, and one column per method.

    Returns:
        Means over seeds, with one row per problem; `values` itself if there is one problem.
    """
    if _problems(values).nunique() < 2:
        return values
    return values.groupby(level="problem", sort=False).mean()


def mean_ranks(values: pd.DataFrame) -> pd.Series:
    """Computes the mean rank of each method; the best rank is one, and ties get mean ranks.

    Args:
        values: A table with one row per case and one column per method; small is better.

    Returns:
        Mean ranks by method, the best method first.
    """
    return values.rank(axis=1).mean().sort_values(kind="stable")


def friedman(values: pd.DataFrame) -> float:
    """Computes the p-value of Friedman's test that all methods are equally good.

    Args:
        values: A table with one row per case and one column per method.

    Returns:
        The p-value; one for fewer than three methods or two cases, or if all methods are equal in
        every case.
    """
    if values.shape[1] < 3 or len(values) < 2:
        return 1.0
    if bool((values.nunique(axis=1) == 1).all()):
        return 1.0
    return float(stats.friedmanchisquare(*(values[method] for method in values)).pvalue)


def critical_difference(num_methods: int, num_cases: int) -> float:
    """Computes the critical difference of two methods' mean ranks (Nemenyi's test).

    Args:
        num_methods: The number of methods that are ranked.
        num_cases: The number of cases.

    Returns:
        The smallest significant difference, at a familywise level of 5 %.
    """
    quantile = float(stats.studentized_range.ppf(LEVEL, num_methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(num_methods * (num_methods + 1) / (6 * num_cases))


@dataclass(frozen=True)
class Estimate:
    """An estimate with its bootstrap distribution over problems and seeds.

    Args:
        value: The estimate.
        drawn: An array of bootstrap estimates.
    """

    value: float
    drawn: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the central 95 % interval."""
        tail = (1 - LEVEL) / 2
        with np.errstate(invalid="ignore"):  # the difference of infinite ratios
            low, high = np.nanquantile(self.drawn, [tail, 1 - tail])
        return float(low), float(high)

    @property
    def standard_error(self) -> float:
        """The bootstrap standard deviation; infinite if a bootstrap estimate is infinite."""
        return float(np.nanstd(self.drawn)) if np.isfinite(self.drawn).all() else math.inf

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} [{low:.2f}, {high:.2f}]"


def ratios(values: pd.DataFrame, reference: str, seed: int = 0) -> dict[str, Estimate]:
    """Computes each method's mean divided by a reference's mean, with a paired bootstrap.

    Args:
        values: A table with one row per problem and seed, and one column per method. All problems
            have the same weight.
        reference: The method to compare with.
        seed: The seed of the resampling.

    Returns:
        The ratio of each method.
    """
    drawn = resampled_means(values, np.random.default_rng(seed))
    means = dict(of_cases(values).mean())
    return {
        str(method): Estimate(
            float(_over(means[method], means[reference])), _over(drawn[method], drawn[reference])
        )
        for method in values
    }


def geometric_mean(estimates: Sequence[Estimate]) -> Estimate:
    """Computes the geometric mean of independent estimates, such as ratios of several studies.

    Args:
        estimates: The estimates, which are not negative.

    Returns:
        The geometric mean.
    """
    values = np.array([each.value for each in estimates])
    drawn = np.array([each.drawn for each in estimates])
    with np.errstate(divide="ignore"):  # a zero makes the mean zero
        return Estimate(float(np.exp(np.log(values).mean())), np.exp(np.log(drawn).mean(axis=0)))


def _problems(values: pd.DataFrame) -> pd.Index:
    """Returns the problem of each row; without the index level `problem`, there is one problem."""
    if "problem" not in values.index.names:
        return pd.Index([0] * len(values))
    return values.index.get_level_values("problem")


def resampled_means(
    values: pd.DataFrame, generator: np.random.Generator
) -> dict[Hashable, np.ndarray]:
    """Computes bootstrap means: draws problems with replacement, then seeds of each problem.

    Args:
        values: A table with one row per problem and seed. All problems have the same weight.
        generator: The random generator, which draws `NUM_BOOTSTRAP` samples.

    Returns:
        The bootstrap means of each column.
    """
    codes, names = pd.factorize(_problems(values))
    rows_of = [np.flatnonzero(codes == code) for code in range(len(names))]
    total = np.zeros((NUM_BOOTSTRAP, values.shape[1]))
    for _ in names:
        chosen = generator.integers(len(names), size=NUM_BOOTSTRAP)
        for code, rows in enumerate(rows_of):
            times = np.flatnonzero(chosen == code)
            drawn = rows[generator.integers(len(rows), size=(len(times), len(rows)))]
            total[times] += values.to_numpy()[drawn].mean(axis=1)
    return dict(zip(values.columns, (total / len(names)).T, strict=True))


def _over(values: np.ndarray | float, others: np.ndarray | float) -> np.ndarray:
    """Divides values; the ratio of two zeros is one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.equal(values, 0) & np.equal(others, 0), 1.0, np.divide(values, others))
