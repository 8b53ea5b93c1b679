"""Old module paths load, and say where they are now; `compatibility` tries what they hold."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

import botorch_transfer
from botorch_transfer import _moved
from botorch_transfer._moved import MOVED, RENAMED

OLD = Path(__file__).parent / "compatibility" / "old_modules.txt"
OLD_MODULES = sorted({line.partition(":")[0] for line in OLD.read_text().split()})
"""The modules of the version before the move; `compatibility` tries their names."""


def path(module: str) -> str:
    return f"botorch_transfer.{module}"


@pytest.fixture
def _as_new():
    """Forgets old modules, and puts back what was there."""
    known = {path(old): sys.modules.pop(path(old), None) for old in MOVED}
    yield
    for name, module in known.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.mark.parametrize("module", OLD_MODULES)
def test_a_module_of_old_exists_or_has_moved(module: str):
    old = module.removeprefix("botorch_transfer.")
    place = Path(botorch_transfer.__file__).parent.joinpath(*old.split("."))
    exists = place.with_suffix(".py").exists() or (place / "__init__.py").exists()
    assert exists != (old in MOVED), "give it a line in botorch_transfer/_moved.py"


@pytest.mark.parametrize("new", sorted(set(MOVED.values())))
def test_what_became_of_them_exists(new: str):
    if not new.startswith("ax") or find_spec("ax") is not None:
        assert path(new) in sys.modules or find_spec(path(new)) is not None


@pytest.mark.usefixtures("_as_new")
def test_an_import_warns_once_and_shows_the_line_that_imports():
    code = "import botorch_transfer.kernels.dense\nfrom botorch_transfer.kernels import dense\n"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(code, "mine.py", "exec"), {})
    (warning,) = caught
    assert (warning.filename, warning.lineno) == ("mine.py", 1)
    assert warning.category is DeprecationWarning
    assert str(warning.message) == (
        "botorch_transfer.kernels.dense moved: import from botorch_transfer.kernels.stationary "
        "instead."
    )


@pytest.mark.usefixtures("_as_new")
def test_a_pickle_warns_where_it_is_loaded():
    pickled = b"cbotorch_transfer._space.numeric\nFloatParameter\n."
    with pytest.warns(DeprecationWarning, match="search_space.parameters") as caught:
        assert pickle.loads(pickled) is botorch_transfer.FloatParameter
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.usefixtures("_as_new")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_renamed_class_is_found_by_its_old_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RENAMED, "search_space.parameters:RealParameter", "FloatParameter")
    old = importlib.import_module("botorch_transfer._space.numeric")
    assert old.RealParameter is botorch_transfer.FloatParameter
    with pytest.raises(AttributeError, match="IrrationalParameter"):
        _ = old.IrrationalParameter


@pytest.mark.usefixtures("_as_new")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_does_not_hide_a_function_of_its_name():
    from botorch_transfer import pretraining

    function = pretraining.leave_one_domain_out
    exec("from botorch_transfer.pretraining.leave_one_domain_out import leave_one_domain_out", {})
    assert pretraining.leave_one_domain_out is function
    assert pickle.loads(pickle.dumps(function)) is function


def test_what_never_existed_is_not_found():
    for name in ("botorch_transfer.nothing", "botorch_transfer._space.nothing", "dense"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)


def test_the_finder_is_asked_last_and_installed_once():
    _moved.install()
    finders = [finder for finder in sys.meta_path if isinstance(finder, _moved._MovedFinder)]
    assert len(finders) == 1
    assert sys.meta_path.index(finders[0]) > sys.meta_path.index(
        next(finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder")
    )


def test_the_package_itself_imports_nothing_by_an_old_path():
    code = "import botorch_transfer, sys; from botorch_transfer._moved import MOVED\n"
    code += "print([old for old in MOVED if f'botorch_transfer.{old}' in sys.modules])"
    options = ["-W", "error::DeprecationWarning:botorch_transfer", "-c", code]
    done = subprocess.run([sys.executable, *options], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
