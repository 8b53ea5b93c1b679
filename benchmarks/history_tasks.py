"""The tuning history's classification tasks, from data inside scikit-learn and statsmodels.

Nothing is downloaded. Every task is binary, and large data sets are cut to `MAX_SAMPLES` rows by a
stratified draw with a fixed seed, so that one evaluation stays cheap enough to tune live.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pandas as pd
import statsmodels.api as sm
from numpy.typing import ArrayLike, NDArray
from sklearn import datasets
from sklearn.utils import resample

MAX_SAMPLES = 200
SEED = 0

Features = NDArray[np.float64]
Labels = NDArray[np.int64]
Task = tuple[Features, Labels]
Raw = tuple[ArrayLike, ArrayLike]


def _pair(load: Callable, negative: int, positive: int) -> Raw:
    """Two of a scikit-learn data set's classes against each other."""
    X, y = load(return_X_y=True)
    rows = np.isin(y, [negative, positive])
    return X[rows], y[rows] == positive


def _one_class(load: Callable, positive: int) -> Raw:
    """One of a scikit-learn data set's classes against all others."""
    X, y = load(return_X_y=True)
    return X, y == positive


def _odd_digits() -> Raw:
    X, y = datasets.load_digits(return_X_y=True)
    return X, y % 2 == 1


def _diabetes(quantile: float) -> Raw:
    """Disease progression after a year above one of its quantiles."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return X, y > np.quantile(y, quantile)


def _statsmodels(name: str) -> pd.DataFrame:
    return getattr(sm.datasets, name).load_pandas().data


def _affairs() -> Raw:
    """Any extramarital affair, from the marriage's circumstances (statsmodels `fair`)."""
    frame = _statsmodels("fair")
    return frame.drop(columns="affairs"), frame["affairs"] > 0


def _vote() -> Raw:
    """The vote of 1996, Clinton or Dole (statsmodels `anes96`)."""
    frame = _statsmodels("anes96")
    return frame.drop(columns="vote"), frame["vote"] == 1


def _travel_by_car() -> Raw:
    """Whether a traveller took the car: cost and time of each mode (statsmodels `modechoice`)."""
    frame = _statsmodels("modechoice")
    wide = frame.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt", "gc"])
    wide = wide.loc[:, wide.nunique() > 1]  # the car has no terminal time
    person = frame.groupby("individual")[["hinc", "psize"]].first()
    by_car = frame[(frame["mode"] == 4) & (frame["choice"] == 1)]["individual"]
    return np.hstack([wide, person]), wide.index.isin(by_car)


def _doctor_visit() -> Raw:
    """Any visit to a doctor within the year (statsmodels `randhie`)."""
    frame = _statsmodels("randhie")
    return frame.drop(columns="mdvis"), frame["mdvis"] > 0


def _school_results() -> Raw:
    """A district's share of good results in mathematics above the median (statsmodels `star98`)."""
    frame = _statsmodels("star98")
    share = frame["NABOVE"] / (frame["NABOVE"] + frame["NBELOW"])
    return frame.drop(columns=["NABOVE", "NBELOW"]), share > share.median()


_BUILDERS: dict[str, Callable[[], Raw]] = {
    **{
        f"digits_{a}_vs_{b}": partial(_pair, datasets.load_digits, a, b)
        for a, b in [(1, 7), (1, 8), (3, 8), (3, 9), (4, 9), (5, 9)]
    },
    "digits_odd": _odd_digits,
    "breast_cancer": partial(_one_class, datasets.load_breast_cancer, 0),
    "iris_versicolor": partial(_one_class, datasets.load_iris, 1),
    "iris_virginica_vs_versicolor": partial(_pair, datasets.load_iris, 1, 2),
    "wine_second_cultivar": partial(_one_class, datasets.load_wine, 1),
    "diabetes_above_median": partial(_diabetes, 0.5),
    "diabetes_top_quarter": partial(_diabetes, 0.75),
    "fair_affair": _affairs,
    "anes96_vote": _vote,
    "modechoice_car": _travel_by_car,
    "randhie_doctor_visit": _doctor_visit,
    "star98_above_median": _school_results,
}

TASKS: tuple[str, ...] = tuple(_BUILDERS)


@cache
def load_task(name: str) -> Task:
    """One task's inputs (`n x d`, raw) and labels (`n`, 0 or 1), at most `MAX_SAMPLES` rows.

    Args:
        name: One of `TASKS`.

    Returns:
        The inputs and the labels.

    Raises:
        ValueError: If there is no task of that name.

    Example:
        >>> X, y = load_task("digits_3_vs_8")
        >>> X.shape, sorted(set(y.tolist()))
        ((200, 64), [0, 1])
    """
    if name not in _BUILDERS:
        raise ValueError(f"There is no task {name!r}; choose one of {', '.join(TASKS)}.")
    inputs, labels = _BUILDERS[name]()
    X, y = np.asarray(inputs, dtype=float), np.asarray(labels, dtype=int)
    if len(y) > MAX_SAMPLES:
        X, y = resample(X, y, replace=False, n_samples=MAX_SAMPLES, stratify=y, random_state=SEED)
    return X, y
