import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow")

from benchmarks.tables import Treatment, read_shared

UNIT = {"type": "float", "low": 0.0, "high": 1.0}
CHOICE = {"type": "categorical", "choices": ["p", "q"]}


@pytest.fixture
def folder(tmp_path):
    x = np.linspace(0.0, 1.0, 5)
    frame = pd.DataFrame(
        [
            {"task": number, "kind": kind, "x": u, "y": 0.1 + u + number + 3 * (kind == "q")}
            for number in (1, 2)
            for kind in ("p", "q")
            for u in x
        ]
    )
    frame.loc[[0, 7], "y"] = [np.nan, 3.2e9]
    frame.to_parquet(tmp_path / "toy.parquet")
    space = {"goal": "min", "params": {"kind": CHOICE, "x": UNIT}}
    (tmp_path / "toy.space.json").write_text(json.dumps(space))
    return tmp_path


def test_a_table_with_its_own_space(folder):
    table = read_shared("toy", folder)
    assert list(table.tasks) == ["1", "2"]
    X, Y = table.tasks["1"]
    assert X.shape == (9, 3)
    assert Y.max() == pytest.approx(-1.35)
    assert Y.min() == -3.2e9
    assert table.frame.columns.tolist() == ["task", "kind", "x", "y", "outcome"]


def test_fixed_parameters_leave_the_space_and_regret_is_to_the_whole_table(folder):
    table = read_shared("toy", folder, Treatment(fixed={"kind": "q"}, worst=99.0))
    assert table.space.columns == ["x"]
    assert table.tasks["2"][0].shape == (5, 1)
    assert table.tasks["2"][1].max() == pytest.approx(-5.1)
    assert table.best_known("2") == pytest.approx(-2.1)
    assert set(table.frame["kind"]) == {"q"}
