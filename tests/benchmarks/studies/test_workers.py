import pytest
from joblib.parallel import get_active_backend

from benchmarks.studies.workers import workers


def test_local_workers_are_as_many_as_asked_for():
    with workers("local", n_jobs=2):
        assert get_active_backend()[1] == 2


def test_a_scheduler_is_dask_s():
    with (
        pytest.raises(ValueError, match="A scheduler is dask's: add --backend dask"),
        workers("local", scheduler="tcp://localhost:1"),
    ):
        pass
