import pytest

pytest.importorskip("ax")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks.ax_study import OLD_TASKS, Setting, ax_space
from benchmarks.history_spaces import SPACES
from botorch_transfer.datasets import tuning_search_space


@pytest.mark.parametrize("space", SPACES)
def test_spaces_are_those_of_the_history(space):
    names = [parameter.name for parameter in tuning_search_space(space).parameters]
    assert [config.name for config in ax_space(space)] == names
    runs = Setting(space, 0).runs()
    assert set(names) <= set(runs.columns)
    assert runs["task"].nunique() == OLD_TASKS
