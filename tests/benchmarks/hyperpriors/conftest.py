from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.hyperpriors.real_domains import TABLES


@pytest.fixture
def tables(tmp_path):
    """Made-up tables in the layout of the public ones."""
    rng = np.random.default_rng(0)
    values = list(range(5))
    params = {
        "depth": {"type": "ordinal", "values": values},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
    }
    rows = pd.DataFrame(
        [(task, d, k) for task in "abc" for d in values for k in "ab"],
        columns=["task", "depth", "kind"],
    )
    rows["y"] = rng.random(len(rows)) + rows["depth"]
    folder = tmp_path / "data"
    (folder / "pmlb").mkdir(parents=True)
    spaces = {"goal": "max", "spaces": {"KNN": {"depth": params["depth"]}, "SVC": params}}
    (folder / "pmlb" / "space.json").write_text(json.dumps(spaces))
    for name in spaces["spaces"]:
        rows.to_parquet(folder / "pmlb" / f"{name}.parquet")
    for name in TABLES:
        rows.to_parquet(folder / f"{name}.parquet")
        (folder / f"{name}.space.json").write_text(json.dumps({"goal": "max", "params": params}))
    return folder
