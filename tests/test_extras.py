"""Ax and Optuna are extras: the core knows of none, and its absence is one clear sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

import botorch_transfer
from botorch_transfer import plotting
from botorch_transfer.suggestion import page

PROGRAM = """
import sys
import botorch_transfer, botorch_transfer.test_functions, botorch_transfer.datasets
slow = {"matplotlib", "scipy.stats", "statsmodels"} & set(sys.modules)
assert not slow, f"core imports {slow} before there is need"
for extra in ("ax", "optuna"):
    assert not any(name.split(".")[0] == extra for name in sys.modules), f"core imports {extra}"
    sys.modules[extra] = None  # as if it were not installed
for extra in ("ax", "optuna"):
    try:
        __import__(f"botorch_transfer.{extra}")
    except ImportError as error:
        print(error)
"""


def test_core_does_not_import_extras_and_their_absence_is_one_sentence():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "botorch_transfer.ax needs Ax: install it by pip install 'botorch_transfer[ax]'.",
        "botorch_transfer.optuna needs Optuna: install it by pip install "
        "'botorch_transfer[optuna]'.",
    ]


@pytest.mark.parametrize(
    ("file", "module", "message"),
    [
        ("ax/__init__.py", "ax.api.client", "botorch_transfer.ax needs Ax: install it by pip"),
        ("old_studies.py", "optuna", "botorch_transfer.optuna needs Optuna: install it by"),
    ],
)
def test_absence_of_an_extra_is_one_sentence(file, module, message, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    path = Path(botorch_transfer.__file__).parent / file
    with pytest.raises(ImportError, match=message):
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), {})


def test_pictures_and_pages_name_what_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="Plots need matplotlib: pip install"):
        plotting._axes(None, (1.0, 1.0))
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match="The page needs Plotly: pip install"):
        page.suggestion_page(None, None)
