"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from botorch_transfer import datasets

README = Path(__file__).parents[1] / "README.md"


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    pytest.importorskip("ax")
    pytest.importorskip("optuna")
    history = datasets.load_tuning_history("svm")  # a part of it saves half a minute
    few = history[history["task"].isin(history["task"].unique()[:4])].groupby("task").head(15)
    monkeypatch.setattr(datasets, "load_tuning_history", lambda space: few)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in _blocks():
        exec(compile(block, README.name, "exec"), names)
    shown = capsys.readouterr().out
    assert "gamma" in shown
    assert "predicted_mean" in shown
    assert set(names["trials"][0]) == {"C", "gamma"}


def test_example_is_short():
    assert len([line for line in _blocks()[0].splitlines() if line.strip()]) <= 12


def test_is_read_to_the_end():
    assert len(README.read_bytes()) <= 7000
