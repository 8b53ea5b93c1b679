"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in _blocks():
        exec(compile(block, README.name, "exec"), names)
    assert "gamma" in capsys.readouterr().out
    assert (tmp_path / "svm.safetensors").is_file()


def test_example_is_short():
    assert len([line for line in _blocks()[0].splitlines() if line.strip()]) <= 12
