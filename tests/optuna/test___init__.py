"""Optuna is an extra: the core does not know of it, and its absence is one clear sentence."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import botorch_transfer, botorch_transfer.test_functions, botorch_transfer.datasets
assert not any(name.split(".")[0] == "optuna" for name in sys.modules), "core imports Optuna"
sys.modules["optuna"] = None  # as if it were not installed
try:
    import botorch_transfer.optuna
except ImportError as error:
    print(error)
"""


def test_core_does_not_import_optuna_and_its_absence_is_one_sentence():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == (
        "botorch_transfer.optuna needs Optuna: install it by pip install "
        "'botorch_transfer[optuna]'."
    )
