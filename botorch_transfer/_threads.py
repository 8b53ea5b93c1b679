"""Keeping SciPy's linear algebra on one thread while it takes an optimizer's small steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from threadpoolctl import threadpool_limits

_in_force = Lock()


@contextmanager
def single_threaded_scipy() -> Iterator[None]:
    """Limits SciPy's BLAS to one thread, for the whole process.

    The steps of L-BFGS-B are a dozen numbers each, over which more threads only wait for one
    another. Where fits overlap, the first one sets the limit and takes it back: each taking back
    what it found would leave the process with one thread for good.
    """
    if not _in_force.acquire(blocking=False):
        yield
        return
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        _in_force.release()
