from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("optuna")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks import optuna_study
from benchmarks.optuna_study import (
    METHODS,
    METRIC,
    OF_LOGARITHMS,
    OLD_TASKS,
    TRANSFER,
    WARM_STARTED,
    old_studies,
    report,
    run,
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


def test_a_warm_start_tries_the_best_of_each_old_study(monkeypatch):
    tried = []

    def evaluate(space, task, config):
        tried.append(config)
        return {METRIC: np.nan if len(tried) == 2 else 1.0}

    monkeypatch.setattr(optuna_study, "evaluate", evaluate)
    monkeypatch.setattr(optuna_study, "EVALUATIONS", OLD_TASKS + 1)
    result = run(WARM_STARTED, "mlp", "modechoice_car", seed=0)
    best = [study.best_params for study in old_studies("mlp", "modechoice_car", seed=0)]
    assert sorted(map(str, tried[:-1])) == sorted(map(str, best))
    assert result["values"] == [1.0, None, *[1.0] * 9]
    assert result["suggesting"] >= 0.0


def test_of_logarithms_gets_them_of_old_and_new_trials(monkeypatch):
    seen = []

    class Sampler(optuna_study.optuna.samplers.RandomSampler):
        def after_trial(self, study, trial, state, values):
            seen.append(values)

    def sampler_of(studies, seed):
        seen.append(studies[0].trials[0].value)
        return Sampler(seed=seed)

    monkeypatch.setattr(optuna_study, "TransferSampler", sampler_of)
    monkeypatch.setattr(optuna_study, "evaluate", lambda *_: {METRIC: 0.25})
    monkeypatch.setattr(optuna_study, "EVALUATIONS", 1)
    result = run(OF_LOGARITHMS[0], "svm", "digits_3_vs_8", seed=0)
    of_loss = old_studies("svm", "digits_3_vs_8", seed=0)[0].trials[0].value
    assert seen == [np.log(of_loss), [np.log(0.25)]]
    assert result["values"] == [0.25]


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
