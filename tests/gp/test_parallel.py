from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from botorch_transfer.gp.parallel import run_jobs, single_threaded_scipy
from botorch_transfer.memo import Memo


def test_results_are_in_order_and_remembered():
    calls, finished = [], Memo(size=9)

    def double(value):
        calls.append(value)
        return 2 * value

    for jobs in ([(3,), (1,)], [(1,), (2,), (3,)]):
        found = list(run_jobs("double", double, jobs, 1, finished))
        assert found == [2 * value for (value,) in jobs]
    assert calls == [3, 1, 2]
    assert list(run_jobs("another", double, [(3,)], 1, finished)) == [6]
    assert calls[-1] == 3


def test_more_jobs_than_are_remembered():
    jobs = [(value, 2) for value in (1, 2, 3, 1, 2)]
    assert list(run_jobs("power", pow, jobs, 1, Memo(size=1))) == [1, 4, 9, 1, 4]


def test_errors_go_through():
    with pytest.raises(ZeroDivisionError):
        list(run_jobs("divide", divmod, [(1, 0)], 1, Memo(size=1)))


def test_threads_side_by_side():
    """Each with PyTorch on one thread; the caller's number stays as it is."""
    before = torch.get_num_threads()
    both_run = threading.Barrier(2, timeout=60)

    def work(value):
        both_run.wait()
        return value, torch.get_num_threads()

    torch.set_num_threads(3)
    try:
        jobs = [(value,) for value in range(4)]
        found = list(run_jobs("work", work, jobs, 1, Memo(size=9), num_threads=2))
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor() as later:  # threads begin with what was set last
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
    assert found == [(value, 1) for value in range(4)]


def test_what_threads_finished_outlives_an_error():
    calls, other_is_kept = [], threading.Event()

    def work(value, fails):
        calls.append(value)
        if not value:
            return value
        assert other_is_kept.wait(60)
        return 1 / (not fails)

    class Watching(Memo):
        def __setitem__(self, key, result):
            super().__setitem__(key, result)
            other_is_kept.set()

    finished = Watching(size=9)
    with pytest.raises(ZeroDivisionError):
        # The one that fails comes first, so the other's result is never handed over.
        list(run_jobs("work", work, [(1, True), (0, True)], 1, finished, num_threads=2))
    calls.clear()
    assert list(run_jobs("work", work, [(0, True)], 1, finished, num_threads=2)) == [0]
    assert calls == []


PROGRAM = """
import resource, torch
from botorch_transfer.gp.parallel import keep_freed_memory

def evaluate():
    return [torch.ones(2**19, dtype=torch.double) for _ in range(10)]  # 40 MiB, 10,240 pages

def page_faults():
    evaluate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        evaluate()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults())
keep_freed_memory()
print(page_faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's allocator")
def test_pages_are_paid_for_once_and_not_each_time() -> None:
    # With settings of its own, as dask makes them, the allocator does not adapt.
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, check=True, env=environment)
    each_time, once = map(int, run.stdout.split())
    assert once < each_time / 10


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_limits_are_given_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        with single_threaded_scipy():
            assert blas_threads() == {1}
            with single_threaded_scipy():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_limits_are_given_back_after_an_error() -> None:
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(ZeroDivisionError), single_threaded_scipy():
            raise ZeroDivisionError
        assert blas_threads() == {2}
        with single_threaded_scipy():
            assert blas_threads() == {1}


def test_limits_are_given_back_where_fits_overlap() -> None:
    # The first one in is the first one out.
    first_in, second_in, first_out = Event(), Event(), Event()

    def first() -> None:
        with single_threaded_scipy():
            first_in.set()
            second_in.wait()
        first_out.set()

    def second() -> None:
        first_in.wait()
        with single_threaded_scipy():
            second_in.set()
            first_out.wait()

    before, threads = blas_threads(), [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blas_threads() == before
