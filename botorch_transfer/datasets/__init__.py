"""The tuning history that ships with the package: four search spaces, measured by this project.

The datasheet is `README.md` beside this file; `benchmarks/measure_history.py` measured the table.
`tuning_spaces.json` is the one place where the four spaces are defined.
"""

from __future__ import annotations

import json
from importlib.resources import as_file, files

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
    """Returns the search space of one part of the tuning history.

    Args:
        space: `"svm"`, `"gbm"`, `"mlp"` or `"forest"`.

    Returns:
        The space, to encode the history with and to tune in.

    Raises:
        ValueError: If there is no space of that name.

    Example:
        >>> [p.name for p in tuning_search_space("svm").parameters]
        ['C', 'gamma']
    """
    if space not in _SPACES:
        raise ValueError(f"There is no space {space!r}; choose one of {', '.join(_SPACES)}.")
    return _SPACES[space]


def load_tuning_history(space: str | None = None) -> pd.DataFrame:
    """Cross-validation results of scikit-learn classifiers: a real history to try transfer with.

    Use it for examples, tests and quick comparisons. On each of its 18 tasks, 150 configurations
    of each space were measured, other ones on every task.

    Args:
        space: `"svm"`, `"gbm"`, `"mlp"` or `"forest"`; all of them together by default.

    Returns:
        One row a run. `space` and `task` are names; then the parameters, NaN where they are
        inactive or belong to another space; `log_loss` (nats a sample, to minimize) and `accuracy`
        (0 to 1, to maximize), NaN in runs that failed; `fit_seconds`, the processor time of the
        whole cross-validation. For one space, only the columns and rows of that space.

    Raises:
        ValueError: If there is no space of that name.

    Example:
        >>> history = load_tuning_history("svm")
        >>> list(history.columns)
        ['space', 'task', 'C', 'gamma', 'log_loss', 'accuracy', 'fit_seconds']
    """
    known = tuning_search_space(space) if space is not None else None
    with as_file(files(__package__) / "tuning_history.csv.gz") as path:
        history = pd.read_csv(path)
    if known is None:
        return history
    history = history[history["space"] == space].reset_index(drop=True)
    return _with_whole_numbers(history[["space", "task", *known.columns, *OUTCOMES]], known)


def _with_whole_numbers(frame: pd.DataFrame, space: SearchSpace) -> pd.DataFrame:
    """Next to other spaces' rows, whole numbers were read as floats; ordinal values are whole."""
    kinds = IntegerParameter, OrdinalParameter
    whole = [p.name for p in space.parameters if isinstance(p, kinds) and p.name in frame]
    return frame.astype(dict.fromkeys(whole, "int64"))


def load_learning_curves(space: str) -> pd.DataFrame:
    """Learning curves of scikit-learn classifiers on the tasks of the tuning history.

    Use them to try predictions of runs that stop early. On each of the 18 tasks, 40 configurations
    of the MLP were trained for 30 epochs, and 20 of the gradient boosting for 80 stages; the loss
    is that on the half of the rows that was held out.

    Args:
        space: `"mlp"` or `"gbm"`.

    Returns:
        One row a step: `task`, `run` (its number on the task), the parameters (but for
        `n_estimators`), `step`, and `log_loss` (nats a sample, to minimize), NaN from where
        training diverged.

    Raises:
        ValueError: If there are no curves of that space.

    Example:
        >>> int(load_learning_curves("mlp")["step"].max())
        30
    """
    if space not in ("gbm", "mlp"):
        raise ValueError(f"There are no curves of the space {space!r}; choose 'mlp' or 'gbm'.")
    with as_file(files(__package__) / "learning_curves.csv.gz") as path:
        runs = pd.read_csv(path, low_memory=False).query("space == @space")
    runs = runs.assign(log_loss=runs["losses"].str.split())
    curves = runs.explode("log_loss").astype({"log_loss": float}).reset_index(drop=True)
    curves["step"] = curves["every"] * (curves.groupby(["task", "run"]).cumcount() + 1)
    known = tuning_search_space(space)
    parameters = [name for name in known.columns if name in runs]
    return _with_whole_numbers(curves[["task", "run", *parameters, "step", "log_loss"]], known)
