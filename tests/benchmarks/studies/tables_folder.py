"""Small tables under the names of real ones, and methods that take no time."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow")

from benchmarks.studies.development import __main__ as program
from benchmarks.studies.development import report, results
from benchmarks.studies.development.methods import PoolMethod, plain_gp

NUM_TASKS, NUM_ROWS = 20, 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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
    for name in ("svm", "mlp"):
        pd.DataFrame(rows).to_parquet(data / f"{name}.parquet")
        (data / f"{name}.space.json").write_text(json.dumps(space))
    return data


def random_method(uses_history: bool) -> PoolMethod:
    """A method that draws all its points at random."""
    return PoolMethod(plain_gp, dict if uses_history else None, num_random=25)


@pytest.fixture
def random_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {"gp": random_method(False), "scaml": random_method(True)}
    for module in (program, report, results):
        monkeypatch.setattr(module, "METHODS", MappingProxyType(methods))
