import pytest

pytest.importorskip("ax")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks.ax_study import METHODS, OLD_TASKS, REFERENCE, Setting, ax_space, report
from benchmarks.history_spaces import SPACES
from botorch_transfer.datasets import tuning_search_space


@pytest.mark.parametrize("space", SPACES)
def test_spaces_are_those_of_the_history(space):
    names = [parameter.name for parameter in tuning_search_space(space).parameters]
    assert [config.name for config in ax_space(space)] == names
    runs = Setting(space, 0).runs()
    assert set(names) <= set(runs.columns)
    assert runs["task"].nunique() == OLD_TASKS


def test_report():
    names = list(METHODS)
    values = {names[0]: [0.5, 0.4, 0.3], names[1]: [0.4, 0.2, 0.1], names[2]: [0.9, 0.8, 0.7]}
    results = [
        {
            "method": method,
            "seed": 0,
            "task": "breast_cancer",
            "values": [*series, *[1.0] * 9],
            "seconds": [1.0] * 12,
            "pretrainings": 1,
        }
        for method, series in values.items()
    ]
    table = report(results, "gbm").splitlines()
    cells = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")] for line in table}
    assert cells[REFERENCE][9:12] == ["3", "3", "100%"]
    assert cells[names[1]][9:12] == ["2", "2", "100%"]
    assert cells[names[2]][9:12] == ["> 12", "inf", "0%"]
