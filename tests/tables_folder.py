"""The folder with the public tables, which are not part of the project."""

import os
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get(
        "BOTORCH_TRANSFER_DATA", Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    )
)

needs_tables = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="the folder with the shared tables (BOTORCH_TRANSFER_DATA) is absent",
)
