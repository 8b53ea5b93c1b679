from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from botorch_transfer.pretraining.memo import Memo
from botorch_transfer.pretraining.parallel import run_jobs


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
