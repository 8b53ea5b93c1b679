from __future__ import annotations

from threading import Event, Thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from botorch_transfer.pretraining.parallel import single_threaded_scipy


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
