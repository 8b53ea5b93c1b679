"""HPO-B, a benchmark of hyperparameter evaluations from OpenML [PinedaArango2021hpob].

Three files, `meta-train-dataset.json`, `meta-validation-dataset.json` and `meta-test-dataset.json`,
each of the form

    {search space: {dataset: {"X": [[...], ...], "y": [[...], ...]}}}

with encoded inputs in the unit interval, and accuracies to be maximized. Each column is read as one
float, because the files do not describe the encoding.

[PinedaArango2021hpob]: S. Pineda Arango et al. HPO-B: A Large-Scale Reproducible Benchmark for
Black-Box HPO Based on OpenML. NeurIPS Datasets and Benchmarks 2021.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tables.table import Table, make_table
from botorch_transfer import FloatParameter, SearchSpace

SPLITS = ("train", "validation", "test")


def read_hpob(folder: Path, space: str) -> Table:
    """Reads one search space of HPO-B.

    Args:
        folder: The folder with the benchmark's files.
        space: The identifier of the search space, such as `"5971"`.

    Returns:
        The table, with one task per dataset. The column `split` of its frame has the file of each
        row; the benchmark's targets are the tasks of `"test"`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If no file has the search space, if a dataset is in two files, or if the shapes
            of its inputs and outcomes do not match.
    """
    parts: dict[str, pd.DataFrame] = {}
    for split in SPLITS:
        for dataset, evaluations in _read_split(folder, split).get(space, {}).items():
            if dataset in parts:
                raise ValueError(f"The dataset {dataset!r} of {space!r} is in two files.")
            parts[dataset] = _frame(space, dataset, evaluations).assign(task=dataset, split=split)
    if not parts:
        raise ValueError(f"The files have no search space {space!r}.")
    columns = {tuple(part.columns) for part in parts.values()}
    if len(columns) > 1:
        raise ValueError(f"The datasets of {space!r} have different numbers of inputs.")
    names = [name for name in columns.pop() if name.startswith("x")]
    cube = SearchSpace([FloatParameter(name, 0.0, 1.0) for name in names])
    frame = pd.concat(parts.values(), ignore_index=True)
    return make_table(f"HPO-B {space}", frame, cube, "y", "max")


def _read_split(folder: Path, split: str) -> Mapping[str, Mapping[str, Any]]:
    path = folder / f"meta-{split}-dataset.json"
    if not path.exists():
        raise FileNotFoundError(f"HPO-B's file {path} is missing.")
    return json.loads(path.read_text(encoding="utf-8"))


def _frame(space: str, dataset: str, evaluations: Mapping[str, Any]) -> pd.DataFrame:
    X = np.asarray(evaluations["X"], dtype=np.float64)
    y = np.asarray(evaluations["y"], dtype=np.float64).reshape(-1)
    if X.ndim != 2 or len(X) != len(y):
        raise ValueError(
            f"The dataset {dataset!r} of {space!r} has inputs of the shape {X.shape} and {len(y)} "
            "outcomes."
        )
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=y)
