"""The documentation's code runs, and its API reference is complete."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import botorch_transfer
from tests.brief import brief_optimization
from tests.suggestion.brief_search import brief_search, briefest_search

DOCS = Path(__file__).parents[1] / "docs"
FACADES = [
    "botorch_transfer",
    *(
        f"botorch_transfer.{path.parent.name}"
        for path in sorted(Path(botorch_transfer.__file__).parent.glob("*/__init__.py"))
        if "__all__" in path.read_text(encoding="utf-8")
    ),
]
LINK = re.compile(r"(\[([^][]*)\]\((?!https:)([^)#]*)#?([^)]*)\))")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|data|exception):: (\S+)$", re.MULTILINE)


def _blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


STORES = DOCS / "concepts" / "stores.md"
PAGES = [page for page in sorted(DOCS.glob("**/*.md")) if _blocks(page) and page != STORES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if "import transfer_generation_strategy" in page.read_text(encoding="utf-8"):
        pytest.importorskip("ax")
    if "import TransferSampler" in page.read_text(encoding="utf-8"):
        pytest.importorskip("optuna")
    if "import matplotlib" in page.read_text(encoding="utf-8"):
        pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    optuna = sys.modules.get("optuna")
    if optuna is not None:  # a few trials of each study are enough
        optimize = optuna.Study.optimize
        few = lambda study, run, n_trials: optimize(study, run, min(n_trials, 4))  # noqa: E731
        monkeypatch.setattr(optuna.Study, "optimize", few)
    names: dict[str, object] = {"__name__": "page"}
    with briefest_search(), brief_optimization():
        for block in _blocks(page):
            exec(compile(block, page.name, "exec"), names)


@pytest.mark.filterwarnings("ignore")
def test_old_runs_of_other_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ax")
    from tests.old_stores import FAILED, LOSSES, fill_ax, search_runs

    monkeypatch.chdir(tmp_path)
    stand_in = ModuleType("mlflow")
    vars(stand_in).update(search_runs=search_runs, set_tracking_uri=lambda uri: None)
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    fill_ax(Path("ax.db"))
    names: dict[str, Any] = {"__name__": "page"}
    common, *of_stores = _blocks(STORES)
    exec(common, names)
    assert len(of_stores) == 2
    for block in of_stores:
        with brief_search():
            exec(block, names)
        runs = names["old_runs"]
        losses = runs.dropna(subset="loss").groupby("task")
        found = [dict(zip(rows["lr"], rows["loss"], strict=True)) for _, rows in losses]
        assert found == [pytest.approx(expected) for expected in LOSSES.values()]
        failed = runs[runs["status"] == "FAILED"]
        assert failed[["lr", "optimizer"]].to_dict("records") == [FAILED] * 2
        assert names["rows"]["lr"].between(3e-4, 1e-2).all()
        assert set(names["rows"]["optimizer"]) == {"adam"}


def test_pages_are_short():
    pages = [*DOCS.glob("*.md"), *DOCS.glob("concepts/*.md")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 11_800


def test_revisions_stay_with_the_results():
    """Users need no revisions; ``benchmarks/results`` names them."""
    for page in [*DOCS.glob("*.md"), *DOCS.glob("concepts/*.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,40}\b", text), page


def test_links_lead_somewhere():
    """In the repository's view; ``make docs`` checks the links of the built pages."""
    folder = DOCS.parent
    for page in [*folder.glob("*.md"), *DOCS.glob("**/*.md"), *folder.glob("tutorials/*.ipynb")]:
        for link, text, path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            target = page.parent / path if path else page
            found = HEADING.findall(target.read_text(encoding="utf-8")) if anchor else []
            slugs = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found]
            assert bool(text), (page.name, link)
            assert anchor in slugs if anchor else target.exists(), (page.name, link)


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
