"""The documentation's code runs, and its API reference is complete."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import botorch_transfer

DOCS = Path(__file__).parents[1] / "docs"
FACADES = [
    "botorch_transfer",
    *(
        f"botorch_transfer.{path.parent.name}"
        for path in sorted(Path(botorch_transfer.__file__).parent.glob("*/__init__.py"))
        if "__all__" in path.read_text(encoding="utf-8")
    ),
]
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|data|exception):: (\S+)$", re.MULTILINE)


def _blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


PAGES = [page for page in sorted(DOCS.glob("**/*.md")) if _blocks(page)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if "import transfer_generation_strategy" in page.read_text(encoding="utf-8"):
        pytest.importorskip("ax")
    if "import TransferSampler" in page.read_text(encoding="utf-8"):
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in _blocks(page):
        exec(compile(block, page.name, "exec"), names)


def _documented() -> list[str]:
    pages = sorted((DOCS / "api").glob("*.md"))
    return [name for page in pages for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def _get(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_facades_are_found():
    assert {"botorch_transfer", "botorch_transfer.models", "botorch_transfer.data"} <= set(FACADES)


@pytest.mark.parametrize("facade", FACADES)
def test_api_reference_is_complete(facade: str):
    try:
        module = importlib.import_module(facade)
    except ImportError as error:
        pytest.skip(f"{facade} needs an extra: {error}")
    known = {id(_get(name)) for name in _documented() if _can_import(name)}
    missing = [name for name in module.__all__ if id(getattr(module, name)) not in known]
    assert not missing, f"give these a line in docs/api: {missing}"


def _can_import(name: str) -> bool:
    try:
        _get(name)
    except ImportError:
        return False  # an extra is missing
    return True


def test_nothing_is_documented_twice():
    names = _documented()
    objects = [id(_get(name)) for name in names if _can_import(name)]
    assert len(set(names)) == len(names)
    assert len(set(objects)) == len(objects)
