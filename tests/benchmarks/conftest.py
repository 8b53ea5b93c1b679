"""Benchmarks are run briefly."""

from collections.abc import Iterator

import pytest

from tests.brief import brief_optimization


@pytest.fixture(autouse=True)
def _brief_optimization() -> Iterator[None]:
    with brief_optimization():
        yield
