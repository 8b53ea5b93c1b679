from __future__ import annotations

import pytest

from botorch_transfer.pretraining.jobs import run_jobs
from botorch_transfer.pretraining.memo import Memo


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
