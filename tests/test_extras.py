"""Ax and Optuna are extras: the core knows of none, and its absence is one clear sentence."""

from __future__ import annotations

import subprocess
import sys

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
