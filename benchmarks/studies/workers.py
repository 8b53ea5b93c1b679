"""Where runs are computed: in processes of this machine, or on a dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from joblib import parallel_config

Backend = Literal["local", "dask"]


@contextmanager
def workers(
    backend: Backend = "local", n_jobs: int = 1, scheduler: str | None = None
) -> Iterator[None]:
    """Tells joblib where to run everything inside this context.

    Args:
        backend: `"local"` for processes of this machine, `"dask"` for a cluster.
        n_jobs: The number of local processes; with dask and no scheduler, of the cluster's workers.
        scheduler: The address of a running dask scheduler, as `tcp://host:8786`. Its workers need
            this repository, the folder of the results, and one thread each.

    Raises:
        ValueError: If a scheduler is given to another backend.
    """
    if backend == "local":
        if scheduler is not None:
            raise ValueError("A scheduler is dask's: add --backend dask.")
        with parallel_config(n_jobs=n_jobs):
            yield
        return
    from dask.distributed import Client, LocalCluster

    with ExitStack() as stack:
        # One thread a worker: runs seed the global generator of random numbers.
        cluster = scheduler or stack.enter_context(
            LocalCluster(n_workers=n_jobs, threads_per_worker=1, dashboard_address=None)
        )
        stack.enter_context(Client(cluster))
        stack.enter_context(parallel_config(backend="dask"))
        yield
