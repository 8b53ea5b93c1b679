"""Benchmarks are run briefly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brief import brief_optimization


@pytest.fixture(autouse=True)
def _brief_optimization() -> Iterator[None]:
    with brief_optimization():
        yield
