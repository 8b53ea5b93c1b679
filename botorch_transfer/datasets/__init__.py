"""The tuning history of four search spaces that ships with the package.

The datasheet is `README.md` in this folder. `benchmarks/measure_history.py` measured the table.
`tuning_spaces.json` defines the four spaces.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pandas as pd

from botorch_transfer.search_space import IntegerParameter, OrdinalParameter, SearchSpace

__all__ = ["load_learning_curves", "load_tuning_history", "tuning_search_space"]

OUTCOMES = ["log_loss", "accuracy", "fit_seconds"]

_SPACES = {
    name: SearchSpace.from_dict(parameters)
    for name, parameters in json.loads(
        files(__package__).joinpath("tuning_spaces.json").read_text("utf-8")
    ).items()
}


def tuning_search_space(space: str) -> SearchSpace:
    """Returns one of the four search spaces of the tuning history.

    Args:
        space: `"svm"`, `"gbm"`, `"mlp"` or `"forest"`.

    Returns:
        The search space of the runs in ``load_tuning_history(space)``.

    Raises:
        ValueError: If the history has no space of this name.

    Example:
        >>> [p.name for p in tuning_search_space("svm").parameters]
        ['C', 'gamma']
    """
    if space not in _SPACES:
        raise ValueError(f"There is no search space {space!r}: choose one of {', '.join(_SPACES)}.")
    return _SPACES[space]


def load_tuning_history(space: str | None = None) -> pd.DataFrame:
    """Loads real old runs: cross-validation results of scikit-learn classifiers.

    Use this history for examples, tests and quick comparisons. On each of 18 tasks, 150
    configurations of each space were measured. No two tasks have a configuration in common.

    Args:
        space: `"svm"`, `"gbm"`, `"mlp"` or `"forest"`; all spaces by default.

    Returns:
        A table with one row per run. `space` and `task` hold names. A parameter's cell is NaN if
        the parameter is inactive or belongs to another space. `log_loss` (nats per sample,
        minimized) and `accuracy` (0 to 1, maximized) are NaN for failed runs. `fit_seconds` is the
        processor time of the whole cross-validation. If `space` is given, the table has only the
        rows and columns of this space.

    Raises:
        ValueError: If the history has no space of this name.

    Example:
        >>> history = load_tuning_history("svm")
        >>> list(history.columns)
        ['space', 'task', 'C', 'gamma', 'log_loss', 'accuracy', 'fit_seconds']
    """
    history = pd.read_csv(str(files(__package__) / "tuning_history.csv.gz"))
    if space is None:
        return history
    known = tuning_search_space(space)
    history = history[history["space"] == space].reset_index(drop=True)
    return _with_whole_numbers(history[["space", "task", *known.columns, *OUTCOMES]], known)


def _with_whole_numbers(frame: pd.DataFrame, space: SearchSpace) -> pd.DataFrame:
    """Converts the columns of integer and ordinal parameters to the dtype int64.

    The file has these columns as floats, because their cells are empty in runs of other spaces.
    """
    kinds = IntegerParameter, OrdinalParameter
    whole = [p.name for p in space.parameters if isinstance(p, kinds) and p.name in frame]
    return frame.astype(dict.fromkeys(whole, "int64"))


def load_learning_curves(space: str) -> pd.DataFrame:
    """Loads learning curves of scikit-learn classifiers on the tasks of the tuning history.

    Use these curves to test early stopping. On each of the 18 tasks, 40 configurations of the MLP
    were trained for 30 epochs, and 20 configurations of gradient boosting for 80 stages. The loss
    is evaluated on a held-out half of the task's classification data.

    Args:
        space: `"mlp"` or `"gbm"`.

    Returns:
        A table with one row per step: `task`, `run` (the number of the run on the task), the
        parameters (without `n_estimators`), `step`, and `log_loss` (nats per sample, minimized).
        `log_loss` is NaN after training diverged.

    Raises:
        ValueError: If there are no learning curves of this space.

    Example:
        >>> int(load_learning_curves("mlp")["step"].max())
        30
    """
    if space not in ("gbm", "mlp"):
        raise ValueError(f"There are no learning curves of {space!r}: choose 'mlp' or 'gbm'.")
    runs = pd.read_csv(str(files(__package__) / "learning_curves.csv.gz"), low_memory=False)
    runs = runs.query("space == @space")
    runs = runs.assign(log_loss=runs["losses"].str.split())
    curves = runs.explode("log_loss").astype({"log_loss": float}).reset_index(drop=True)
    curves["step"] = curves["every"] * (curves.groupby(["task", "run"]).cumcount() + 1)
    known = tuning_search_space(space)
    parameters = [name for name in known.columns if name in runs]
    return _with_whole_numbers(curves[["task", "run", *parameters, "step", "log_loss"]], known)
