"""Independent pieces of pre-training, in parallel and without losing finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

from botorch_transfer.pretraining.memo import Memo, content_key

T = TypeVar("T")


def run_jobs(
    name: str,
    function: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    n_jobs: int | None,
    finished: Memo,
) -> Iterator[T]:
    """Runs jobs in order, those finished in an interrupted run excepted.

    Args:
        name: What the function does: part of the key by which results are remembered.
        function: What each job calls; a function that can be pickled.
        jobs: Its arguments, job by job.
        n_jobs: How many joblib runs in parallel; ``None`` follows ``joblib.parallel_config``.
        finished: Remembers the results of jobs.

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
    done = Parallel(n_jobs=n_jobs, return_as="generator")(
        delayed(function)(*job) for job in todo.values()
    )
    remaining = zip(todo, done, strict=True)
    for key in keys:
        while key not in results:
            new, result = next(remaining)
            results[new] = finished[new] = result
        yield results[key]
