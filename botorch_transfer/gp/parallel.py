"""Independent fits in parallel: jobs that are not repeated after an interruption, threads, memory.

Read this for how pre-training uses processes and threads, and for the two settings that small fits
need: SciPy's BLAS on one thread, and an allocator that keeps freed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from botorch_transfer.memo import Memo, content_key

_in_force = Lock()


@contextmanager
def single_threaded_scipy() -> Iterator[None]:
    """Limits SciPy's BLAS to one thread, for the whole process.

    A step of L-BFGS-B works on a dozen numbers, where more threads only wait for each other. If
    fits overlap, only the first one sets and resets the limit: if each restored what it had found,
    the process could be left with one thread for good.
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
    """Makes the allocator keep freed memory for the next evaluation.

    The C library returns large freed blocks to the system, and each new block then costs page
    faults, a third of the time of a fit. It stops doing so once a block of 32 MiB was freed.
    Settings by ``MALLOC_...`` in the environment, as in dask's workers, stay in force.

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
    """Runs jobs in order, except those that an interrupted run finished.

    SciPy's BLAS is limited to one thread meanwhile.

    Args:
        name: What the function does: part of the key by which results are remembered.
        function: What each job calls; a function that can be pickled.
        jobs: Its arguments, job by job.
        n_jobs: How many joblib runs in parallel; ``None`` follows ``joblib.parallel_config``.
        finished: Remembers the results of jobs.
        num_threads: If greater than one, this process runs that many jobs at a time instead, each
            with PyTorch on one thread.

    Yields:
        The jobs' results, as they become available.

    Example:
        >>> list(run_jobs("power", pow, [(2, 3), (3, 2)], n_jobs=1, finished=Memo(size=9)))
        [8, 9]
    """
    keys = [content_key(name, *job) for job in jobs]
    # A dictionary as well, because the memo may hold fewer results than there are jobs.
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
        # One thread for each job is faster than several threads within a job, because PyTorch
        # factorizes the matrices of a batch one after another.
        torch.set_num_threads(1)
        try:
            # Remembered at once: if another job fails, this result is never yielded.
            finished[key] = result = function(*job)
            return result
        finally:
            torch.set_num_threads(before)

    before = torch.get_num_threads()
    with single_threaded_scipy():
        yield from Parallel(n_jobs=number, backend="threading", return_as="generator")(
            delayed(run)(key, job) for key, job in jobs.items()
        )
