from collections.abc import Iterator

import pytest

from tests.suggestion.brief_search import brief_search


@pytest.fixture(autouse=True)
def _brief_search() -> Iterator[None]:
    with brief_search():
        yield
