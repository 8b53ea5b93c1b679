import pytest

pytest.importorskip("optuna")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks.optuna_study import (
    METHODS,
    OF_LOGARITHMS,
    TRANSFER,
    WARM_STARTED,
    report,
)


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
