import re

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("statsmodels")

from benchmarks import changed_spaces
from benchmarks.changed_spaces import NONE, SETTINGS, UNCHANGED, Change, Setting
from botorch_transfer import (
    CategoricalParameter,
    OrdinalParameter,
    ScaMLGP,
    SearchSpace,
    suggestion,
)
from tests.tables_folder import FOLDER, needs_tables

SPACE = SearchSpace(
    [OrdinalParameter("x", tuple(range(6))), CategoricalParameter("kind", ("a", "b", "c"))]
)
SMALL = Setting(
    "small",
    SPACE,
    {
        "wider range": Change({"x": [0, 1, 2]}),
        "new choice": Change({"kind": ["a", "b"]}),
        "new parameter, value known": Change({"x": [1]}, "x", {"x": 1}),
    },
    size=8,
    where={"fold": 0},
)


@pytest.fixture(autouse=True)
def _quick_model(monkeypatch):
    """These tests are about histories and tables, not about the model."""
    monkeypatch.setattr(suggestion, "DEFAULT_MODEL", ScaMLGP)


@pytest.fixture
def folder(tmp_path):
    rows = []
    for number in range(3):
        grid = SPACE.grid().assign(task=number)
        kind = grid["kind"].map({"a": 0.0, "b": 1.0, "c": 0.5})
        grid["y"] = -((grid["x"] - 3 - 0.2 * number) ** 2) / 4 - kind
        rows += [grid.assign(fold=0), grid.assign(fold=1, y=99.0)]
    pd.concat(rows).to_parquet(tmp_path / "small.parquet")
    return tmp_path


def test_histories_are_those_of_an_earlier_space(folder):
    table = SMALL.read(folder)
    assert len(table) == 3 * 18
    assert set(SMALL.changes["wider range"].history(table)["x"]) == {0, 1, 2}
    assert set(SMALL.changes["new choice"].history(table)["kind"]) == {"a", "b"}
    new = SMALL.changes["new parameter, value known"].history(table)
    assert "x" not in new
    assert len(new) == 9


@pytest.mark.parametrize("name", [NONE, UNCHANGED, *SMALL.changes])
def test_regret_is_that_of_the_best_row_yet(folder, monkeypatch, name):
    monkeypatch.setattr(changed_spaces, "EVALUATIONS", 6)
    regrets = changed_spaces.run(SMALL, SMALL.read(folder), "1", name, seed=0)
    assert len(regrets) == 6
    assert (np.diff(regrets) <= 0).all()
    assert all(0 <= regret <= 1 for regret in regrets)
    if name == UNCHANGED:
        assert changed_spaces.run(SMALL, SMALL.read(folder), "1", name, seed=0) == regrets
        assert regrets[-1] == 0.0


def test_finished_runs_are_not_repeated(folder, monkeypatch, capsys):
    monkeypatch.setattr(changed_spaces, "EVALUATIONS", 4)
    monkeypatch.setattr(changed_spaces, "AT", (1, 4))
    monkeypatch.setitem(changed_spaces.SETTINGS, "small", SMALL)
    out = folder / "out.csv"
    arguments = ["--data", str(folder), "--tables", "small", "--targets", "2", "--out", str(out)]
    changed_spaces.main(arguments)
    printed = capsys.readouterr().out
    assert printed.startswith("small, 2 targets\n\n| history ")
    assert re.search(r"\| unchanged +\| +0\.\d{3} \| +\d\.\d\d \[\d\.\d\d, \d\.\d\d\] \|", printed)
    assert len(pd.read_csv(out)) == 2 * 5
    monkeypatch.setattr(changed_spaces, "run", None)
    changed_spaces.main(arguments)
    assert capsys.readouterr().out == printed


@needs_tables
@pytest.mark.parametrize("name", SETTINGS)
def test_tables_have_every_configuration(name):
    setting = SETTINGS[name]
    table = setting.read(FOLDER)
    grid = setting.space.grid()
    assert (table.groupby("task").size() == len(grid)).all()
    for change in setting.changes.values():
        assert len(change.history(table)) >= 10 * table["task"].nunique()
