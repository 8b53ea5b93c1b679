"""A brief search for the next row, where tests are about other things than how good it is."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module

import pytest

from botorch_transfer.suggestion import next_rows, region, search
from tests.brief import fit_briefly

backtest = import_module("botorch_transfer.suggestion.backtest")  # the function has its name


@contextmanager
def brief_search(num_starts: int = 2, max_iter: int = 5) -> Iterator[None]:
    """Fits from one start, scores few random rows, and climbs a few steps from the best of them."""
    with pytest.MonkeyPatch.context() as patch:
        fit_briefly(patch)
        patch.setattr(search, "POOL", 64)
        patch.setattr(search, "NUM_STARTS", num_starts)
        patch.setattr(search, "NUM_CHOICES", 2)
        patch.setattr(search, "MAX_ITER", max_iter)
        patch.setattr(search, "MAX_REPAIRED", 4)
        patch.setattr(region, "MAX_REPAIRED", 4)
        patch.setattr(next_rows, "NUM_REFERENCE", 64)
        patch.setattr(backtest, "CHECKPOINTS", (1, 2, 3))
        yield


def briefest_search() -> AbstractContextManager[None]:
    """The same where no row is judged."""
    return brief_search(num_starts=1, max_iter=1)
