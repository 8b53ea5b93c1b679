import pytest

pytest.importorskip("optuna")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks import optuna_study
from benchmarks.optuna_study import (
    METHODS,
    OF_LOGARITHMS,
    OLD_TASKS,
    TRANSFER,
    WARM_STARTED,
    old_studies,
    report,
)
from botorch_transfer.optuna.history import history_of

FEW_RUNS = 8


@pytest.fixture(autouse=True)
def _few_old_runs(monkeypatch):
    monkeypatch.setattr(optuna_study, "OLD_RUNS", FEW_RUNS)


def test_old_studies_are_of_other_data_sets_and_paired_by_seed():
    studies = old_studies("mlp", "digits_3_vs_8", seed=1)
    assert len(studies) == OLD_TASKS
    assert not any(study.study_name.startswith("digits") for study in studies)
    assert {len(study.trials) for study in studies} == {FEW_RUNS}
    for trial in studies[0].trials:
        assert ("momentum" in trial.params) == (trial.params["solver"] == "sgd")
    history = history_of(studies)
    assert history.space.columns[-1] == "momentum"
    again = history_of(old_studies("mlp", "digits_3_vs_8", seed=1))
    assert history.runs.equals(again.runs)
    assert not history.runs.equals(history_of(old_studies("mlp", "digits_3_vs_8", 2)).runs)


def test_report():
    final = {TRANSFER: 0.02, "TPE": 0.3, "GPSampler": 0.2, WARM_STARTED: 0.4}
    final |= dict.fromkeys(OF_LOGARITHMS, 0.1)
    results = [
        {
            "method": method,
            "space": "svm",
            "task": task,
            "seed": seed,
            "values": [None, 0.6, 0.3 if method == TRANSFER else 0.6, final[method]],
            "suggesting": 8.0,
        }
        for method in METHODS
        for task in ("iris_versicolor", "digits_3_vs_8")
        for seed in (0, 1)
    ]
    lines = report(results).splitlines()
    assert lines[0] == "2 problems × 2 seeds, 4 evaluations"
    cells = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")] for line in lines[4:]}
    assert cells[TRANSFER][-4:-1] == ["3 [3, 3]", "4 [4, 4]", "2.00"]
    assert cells["TPE"][-4:-2] == ["4 [4, 4]", "> 4 [> 4, > 4]"]
    assert cells[WARM_STARTED][-4:-2] == ["> 4 [> 4, > 4]"] * 2
