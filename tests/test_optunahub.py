"""The folder for OptunaHub has its layout, loads without PyTorch, and its example runs."""

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

optuna = pytest.importorskip("optuna")
yaml = pytest.importorskip("yaml")

REGISTRY = Path(__file__).parents[1] / "contrib" / "optunahub" / "package"
PACKAGE = REGISTRY / "samplers" / "transfer_gp"
SECTIONS = ("Abstract", "Class or Function Names", "Installation", "Example", "Others")


def load_module(package: str) -> ModuleType:
    """Loads a package of the folder as ``optunahub.load_local_module`` does."""
    name = f"optunahub_registry.package.{package.replace('/', '.')}"
    spec = importlib.util.spec_from_file_location(name, REGISTRY / package / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _readme() -> tuple[dict[str, object], str]:
    _, header, text = (PACKAGE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(header), text


def test_front_matter_is_what_the_registry_checks():
    header, _ = _readme()
    assert set(header) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    for name in ("author", "title", "description"):
        assert isinstance(header[name], str)
    for name in ("tags", "optuna_versions"):
        assert isinstance(header[name], list)
        assert all(isinstance(value, str) for value in header[name])
    assert "sampler" in header["tags"]
    assert header["license"] == "MIT License"


def test_files_and_sections():
    names = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert names == {"README.md", "LICENSE", "__init__.py", "example.py", "requirements.txt"}
    assert PACKAGE.name.isidentifier()
    _, text = _readme()
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == SECTIONS
    lines = re.search(r"## Class or Function Names\n\n((?:- .+\n)+)", text)
    assert sorted(lines[1].replace("- ", "").split()) == load_module("samplers/transfer_gp").__all__
    assert (PACKAGE / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")


def test_loading_imports_nothing_heavy():
    program = f"import runpy, sys; runpy.run_path({str(PACKAGE / '__init__.py')!r}); "
    program += "print(sorted({'torch', 'botorch_transfer', 'pandas', 'optuna'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_names():
    from botorch_transfer.optuna import TransferSampler

    module = load_module("samplers/transfer_gp")
    assert module.TransferSampler is TransferSampler
    assert dir(module) == module.__all__
    with pytest.raises(AttributeError, match="no attribute 'Sampler'"):
        module.Sampler  # noqa: B018


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "botorch_transfer.optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'botorch_transfer\[optuna\]'"):
        load_module("samplers/transfer_gp").TransferSampler  # noqa: B018


def test_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    hub = ModuleType("optunahub")
    vars(hub)["load_module"] = load_module
    monkeypatch.setitem(sys.modules, "optunahub", hub)
    runpy.run_path(str(PACKAGE / "example.py"), run_name="__main__")
    assert "learning_rate" in capsys.readouterr().out
