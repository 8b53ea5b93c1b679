"""Reader of public tuning and experiment histories in parquet files (`--data FOLDER`).

Each table is a file `NAME.parquet` with one row per evaluation: `task`, the parameters, `y`. A file
`NAME.space.json` has the search space and the goal; several tables of a folder may share one
`space.json`. The project does not contain these files.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tables.table import Goal, Table, make_table
from botorch_transfer import SearchSpace

#: Name of the column that a reader adds: outcomes as they are modelled, with the original sign.
OUTCOME = "outcome"


@dataclass(frozen=True)
class Treatment:
    """Treatment of a table's rows before encoding.

    Args:
        fixed: Parameters to fix, with their values. Rows with other values are dropped, and the
            parameters leave the search space. Regret still refers to the best value of the whole
            table.
        worst: The outcome that replaces worse outcomes and outcomes that are not numbers.
        log: Whether outcomes are replaced by their logarithms.
        missing: The value of every parameter that a task does not record.
    """

    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    worst: float | None = None
    log: bool = False
    missing: float | None = None


#: Treatment of each table that needs one; `fcnet_relu` is a part of `fcnet`.
TREATMENTS: dict[str, Treatment] = {
    # Errors range over five orders of magnitude.
    "fcnet": Treatment(log=True),
    # The part in ScaML-GP's paper: both activations are relu, with a cosine schedule.
    "fcnet_relu": Treatment(
        fixed=MappingProxyType(
            {"activation_fn_1": "relu", "activation_fn_2": "relu", "lr_schedule": "cosine"}
        ),
        log=True,
    ),
    # Guessing has a loss of 0.69; training has failed if the loss is above 1.
    "rnn_optimizer": Treatment(worst=1.0),
    # An element that is not on a plate has the fraction zero.
    "oer_plates": Treatment(missing=0.0),
}

_FILES = {"fcnet_relu": "fcnet"}
_RANGE_IN_WORDS = re.compile(r"1-\w+ log-uniform ([\d.e+-]+?)\.\.([\d.e+-]+)")


def read_shared(name: str, folder: Path, treatment: Treatment | None = None) -> Table:
    """Reads a table.

    Args:
        name: The table, such as `"svm"`, `"fcnet_relu"` or `"pmlb/SVC"`.
        folder: The folder with all tables.
        treatment: The treatment of the rows; by default the table's entry in `TREATMENTS`.

    Returns:
        The table.

    Raises:
        FileNotFoundError: If the folder has no such table.
        ValueError: If a fixed parameter is not in the search space or never has that value.
    """
    treatment = TREATMENTS.get(name, Treatment()) if treatment is None else treatment
    path = folder / f"{_FILES.get(name, name)}.parquet"
    if not path.exists():
        raise FileNotFoundError(f"There is no table {path}: check the folder.")
    frame, (space, goal) = pd.read_parquet(path), read_space(path)
    frame = frame.assign(**{OUTCOME: _outcomes(frame["y"], goal, treatment)})
    best = _best(frame, goal) if treatment.fixed else {}
    frame, space = _fix(frame, space, treatment.fixed)
    missing = None if treatment.missing is None else dict.fromkeys(space.columns, treatment.missing)
    table = make_table(name, frame, space, OUTCOME, goal, missing=missing)
    return replace(table, best=best)


def read_space(table: Path) -> tuple[SearchSpace, Goal]:
    """Reads the search space and the goal of a table.

    Args:
        table: The parquet file. Its folder has `NAME.space.json` or `space.json`.

    Returns:
        The space, and whether its outcomes are to be maximized or minimized.
    """
    own = table.with_suffix(".space.json")
    path, member = (own, None) if own.exists() else (table.with_name("space.json"), table.stem)
    spec = json.loads(path.read_text(encoding="utf-8"))
    chosen = spec if member is None else spec["spaces"][member]
    specs = {name: _in_numbers(entry) for name, entry in chosen.get("params", chosen).items()}
    return SearchSpace.from_dict(specs), spec["goal"]


def _in_numbers(spec: dict[str, Any]) -> dict[str, Any]:
    """Parses the range of a float from a note such as "1-beta1 log-uniform 1e-4..1"."""
    words = _RANGE_IN_WORDS.fullmatch(spec.get("note", ""))
    if spec["type"] != "float" or "low" in spec or words is None:
        return spec
    smallest, largest = float(words[1]), float(words[2])
    return {**spec, "low": 1 - largest, "high": 1 - smallest, "log": "1-x"}


def _outcomes(y: pd.Series, goal: Goal, treatment: Treatment) -> pd.Series:
    y = y.astype(float)
    if treatment.worst is not None and goal == "min":
        y = y.fillna(np.inf).clip(upper=treatment.worst)
    elif treatment.worst is not None:
        y = y.fillna(-np.inf).clip(lower=treatment.worst)
    return pd.Series(np.log(y.to_numpy()), index=y.index) if treatment.log else y


def _best(frame: pd.DataFrame, goal: Goal) -> dict[str, float]:
    values = frame[OUTCOME] if goal == "max" else -frame[OUTCOME]
    values = values[np.isfinite(values)]
    return values.groupby(frame["task"].astype(str)).max().to_dict()


def _fix(
    frame: pd.DataFrame, space: SearchSpace, fixed: Mapping[str, Any]
) -> tuple[pd.DataFrame, SearchSpace]:
    for name, value in fixed.items():
        if name not in space.columns:
            raise ValueError(f"The search space has no parameter {name!r} to fix.")
        frame = frame[frame[name] == value]
        if frame.empty:
            raise ValueError(f"No row has {name!r} fixed at {value!r}.")
    return frame, SearchSpace([p for p in space.parameters if p.name not in fixed])
