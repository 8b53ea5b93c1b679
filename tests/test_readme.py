"""What the README shows runs as it stands there."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from pandas import read_csv

from botorch_transfer.__main__ import main
from tests.suggestion.brief_search import brief_search

README = Path(__file__).parents[1] / "README.md"


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the old runs that the README names, where it is read."""
    shutil.copy(README.with_name("old_runs.csv"), tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_code_runs(clone: Path, capsys: pytest.CaptureFixture):
    pytest.importorskip("ax")
    optuna = pytest.importorskip("optuna")
    for name in ("monday", "tuesday"):
        old = optuna.create_study(study_name=name, storage=f"sqlite:///{clone / 'old.db'}")
        old.optimize(lambda trial: trial.suggest_float("C", 1e-2, 1e3, log=True), n_trials=2)
    names: dict[str, Any] = {}
    for block in _blocks():
        exec(compile(block, README.name, "exec"), names)
    shown = capsys.readouterr().out
    assert "gamma" in shown
    assert "predicted_mean" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert set(names["trials"][0]) == {"C", "gamma"}
    assert 1e-4 < names["space"].decode(names["candidate"])["gamma"].item() < 0.1  # no corner


def test_commands_run(clone: Path, capsys: pytest.CaptureFixture):
    lines = README.read_text(encoding="utf-8").splitlines()
    with brief_search():
        for line in lines:
            if line.startswith("python -m botorch_transfer"):
                main(shlex.split(line)[3:])
    assert "would have saved" in capsys.readouterr().out
    assert len(read_csv(clone / "runs.csv")) == 3


def test_example_is_short():
    assert len([line for line in _blocks()[0].splitlines() if line.strip()]) <= 12


def test_is_read_to_the_end():
    assert len(README.read_bytes()) <= 7200
