"""Every test of this room pre-trains for itself."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_remembered(nothing_remembered: None) -> None:
    pass
