"""A small table under the name of a real one."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

NUM_TASKS, NUM_ROWS = 20, 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    generator = np.random.default_rng(0)
    x = generator.random((NUM_ROWS, 2))
    rows = [
        {"task": f"t{task:02d}", "a": a, "b": b, "y": -((a - task / 20) ** 2) - b}
        for task in range(NUM_TASKS)
        for a, b in x
    ]
    rows += [{"task": "few", "a": 0.5, "b": 0.1 * row, "y": float(row)} for row in range(9)]
    unit = {"type": "float", "low": 0.0, "high": 1.0}
    space = {"goal": "max", "params": {"a": unit, "b": unit}}
    data = tmp_path / "data"
    data.mkdir()
    pd.DataFrame(rows).to_parquet(data / "svm.parquet")
    (data / "svm.space.json").write_text(json.dumps(space))
    return data
