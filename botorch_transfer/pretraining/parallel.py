"""Keeping SciPy's linear algebra on one thread while it takes an optimizer's small steps.

What the allocator has to know of long loops.

Independent pieces of pre-training, in parallel and without losing finished ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from botorch_transfer.pretraining.memo import Memo, content_key

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


def keep_freed_memory() -> None:
    """Has the allocator keep what one evaluation frees for the next one.

    The C library hands large freed pieces back to the system, and pays for every page of the next
    ones, until it has seen one of 32 MiB come and go. That cost a third of a fit.
    Where ``MALLOC_...`` in the environment says what to do, as in dask's workers, it stays so.

    Example:
        >>> keep_freed_memory()
    """
    torch.empty(2**22 - 2**10, dtype=torch.double)


T = TypeVar("T")


def run_jobs(
    name: str,
    function: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    n_jobs: int | None,
    finished: Memo,
    num_threads: int = 1,
) -> Iterator[T]:
    """Runs jobs in order, those finished in an interrupted run excepted.

    Each runs with SciPy's linear algebra on one thread.

    Args:
        name: What the function does: part of the key by which results are remembered.
        function: What each job calls; a function that can be pickled.
        jobs: Its arguments, job by job.
        n_jobs: How many joblib runs in parallel; ``None`` follows ``joblib.parallel_config``.
        finished: Remembers the results of jobs.
        num_threads: With more than one, this process runs so many jobs side by side instead, each
            with PyTorch on one thread.

    Yields:
        The jobs' results, as they become available.

    Example:
        >>> list(run_jobs("power", pow, [(2, 3), (3, 2)], n_jobs=1, finished=Memo(size=9)))
        [8, 9]
    """
    keys = [content_key(name, *job) for job in jobs]
    # Kept here as well: more jobs than the memo holds must not push one another out.
    results = {key: finished[key] for key in keys if key in finished}
    todo = {key: job for key, job in zip(keys, jobs, strict=True) if key not in results}
    if num_threads > 1:
        done = _on_threads(function, todo, finished, num_threads)
    else:
        done = Parallel(n_jobs=n_jobs, return_as="generator")(
            delayed(_in_process)(function, job) for job in todo.values()
        )
    remaining = zip(todo, done, strict=True)
    for key in keys:
        while key not in results:
            new, result = next(remaining)
            results[new] = finished[new] = result
        yield results[key]


def _in_process(function: Callable[..., T], job: tuple[Any, ...]) -> T:
    with single_threaded_scipy():
        return function(*job)


def _on_threads(
    function: Callable[..., T], jobs: Mapping[str, tuple[Any, ...]], finished: Memo, number: int
) -> Iterator[T]:
    def run(key: str, job: tuple[Any, ...]) -> T:
        # Jobs side by side beat threads within each: most of the linear algebra goes matrix by
        # matrix, and threads that wait for each other suffer from whatever else the machine does.
        torch.set_num_threads(1)
        try:
            # Kept at once: should another job fail, this one's result would not be handed over.
            finished[key] = result = function(*job)
            return result
        finally:
            torch.set_num_threads(before)

    before = torch.get_num_threads()
    with single_threaded_scipy():
        yield from Parallel(n_jobs=number, backend="threading", return_as="generator")(
            delayed(run)(key, job) for key, job in jobs.items()
        )
