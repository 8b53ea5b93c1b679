"""Ax is an extra: the core does not know of it, and its absence is one clear sentence."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import botorch_transfer, botorch_transfer.test_functions, botorch_transfer.datasets
assert not any(name == "ax" or name.startswith("ax.") for name in sys.modules), "core imports Ax"
sys.modules["ax"] = None  # as if it were not installed
try:
    import botorch_transfer.ax
except ImportError as error:
    print(error)
"""


def test_core_does_not_import_ax_and_its_absence_is_one_sentence():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == (
        "botorch_transfer.ax needs Ax: install it by pip install 'botorch_transfer[ax]'."
    )
