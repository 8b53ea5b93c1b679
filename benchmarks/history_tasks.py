"""Classification tasks of the tuning history, from data in scikit-learn and statsmodels.

Nothing is downloaded. All tasks are binary. A task has at most `MAX_SAMPLES` rows, so that an
evaluation is fast enough for live studies. Rows of a larger data set are a stratified sample with
a fixed seed.
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
    """Loads a task of two classes of a scikit-learn data set."""
    X, y = load(return_X_y=True)
    rows = np.isin(y, [negative, positive])
    return X[rows], y[rows] == positive


def _one_class(load: Callable, positive: int) -> Raw:
    """Loads a task of one class of a scikit-learn data set against all other classes."""
    X, y = load(return_X_y=True)
    return X, y == positive


def _odd_digits() -> Raw:
    X, y = datasets.load_digits(return_X_y=True)
    return X, y % 2 == 1


def _diabetes(quantile: float) -> Raw:
    """Loads a task: is the disease progression after a year above a quantile?"""
    X, y = datasets.load_diabetes(return_X_y=True)
    return X, y > np.quantile(y, quantile)


def _statsmodels(name: str) -> pd.DataFrame:
    return getattr(sm.datasets, name).load_pandas().data


def _affairs() -> Raw:
    """Loads a task: has a married person had an affair (statsmodels `fair`)?"""
    frame = _statsmodels("fair")
    return frame.drop(columns="affairs"), frame["affairs"] > 0


def _vote() -> Raw:
    """Loads a task: did a voter vote for Clinton or Dole in 1996 (statsmodels `anes96`)?"""
    frame = _statsmodels("anes96")
    return frame.drop(columns="vote"), frame["vote"] == 1


def _travel_by_car() -> Raw:
    """Loads a task: did a traveller take the car (statsmodels `modechoice`)?

    The inputs are the costs and times of each mode, and the traveller's income and party size.
    """
    frame = _statsmodels("modechoice")
    wide = frame.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt", "gc"])
    wide = wide.loc[:, wide.nunique() > 1]  # drops the terminal time of the car, which is always 0
    person = frame.groupby("individual")[["hinc", "psize"]].first()
    by_car = frame[(frame["mode"] == 4) & (frame["choice"] == 1)]["individual"]
    return np.hstack([wide, person]), wide.index.isin(by_car)


def _doctor_visit() -> Raw:
    """Loads a task: did a person visit a doctor within the year (statsmodels `randhie`)?"""
    frame = _statsmodels("randhie")
    return frame.drop(columns="mdvis"), frame["mdvis"] > 0


def _school_results() -> Raw:
    """Loads a task: are a district's results in mathematics above the median (`star98`)?"""
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
    """Loads the data of a task.

    Args:
        name: The name of the task, one of `TASKS`.

    Returns:
        The inputs, an `n x d` array in raw units, and the labels, an `n` array of 0 and 1. `n` is
        at most `MAX_SAMPLES`.

    Raises:
        ValueError: If the task does not exist.

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
