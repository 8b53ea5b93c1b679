from __future__ import annotations

from collections.abc import Iterator

import pytest

from botorch_transfer.pretraining import clear_memos


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """Lets every test pre-train for itself."""
    clear_memos()
    yield
    clear_memos()
