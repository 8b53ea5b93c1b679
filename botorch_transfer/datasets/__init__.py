"""The tuning history of four search spaces that ships with the package.

The datasheet is `README.md` in this folder. `benchmarks/measure_history.py` measured the table.
`tuning_spaces.json` defines the four spaces.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pandas as pd

from botorch_transfer.search_space import IntegerParameter, OrdinalParameter, SearchSpace

__all__ = ["load_tuning_history", "tuning_search_space"]

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
    history = history[["space", "task", *known.columns, *OUTCOMES]]
    # The file has these columns as floats, because their cells are empty in runs of other spaces.
    kinds = IntegerParameter, OrdinalParameter
    return history.astype({p.name: "int64" for p in known.parameters if isinstance(p, kinds)})
