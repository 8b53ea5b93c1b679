import pandas as pd
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks import logarithms
from benchmarks.logarithms import main, run, targets


def test_targets_are_of_different_data_sets():
    found = targets("svm")
    assert found == sorted(found)
    assert len({name.split("_")[0] for name in found}) == len(found) == 10


def test_regret_is_of_the_loss(monkeypatch):
    monkeypatch.setattr(logarithms, "EVALUATIONS", 6)
    plain, of_logarithms = (run("svm", "iris_versicolor", 0, "gp", log) for log in (False, True))
    assert plain[:2] == of_logarithms[:2]
    assert plain != of_logarithms
    for regrets in (plain, of_logarithms):
        assert len(regrets) == 6
        assert regrets == sorted(regrets, reverse=True)
        assert 0.0 <= regrets[-1] < 0.5


def test_finished_runs_are_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logarithms, "EVALUATIONS", 3)
    monkeypatch.setattr(logarithms, "AT", (1, 3))
    monkeypatch.setattr(logarithms, "COMPARED", ("gp",))
    monkeypatch.setattr(
        logarithms, "targets", lambda space: ["iris_versicolor", "diabetes_top_quarter"]
    )
    arguments = ["--out", str(tmp_path / "runs.csv"), "--spaces", "svm"]
    main(arguments)
    printed = capsys.readouterr().out
    assert printed.startswith("svm: 2 targets × 2 seeds\n")
    assert printed.splitlines()[-2].split("|")[3].strip() == "1.00 [1.00, 1.00]"
    assert len(pd.read_csv(tmp_path / "runs.csv")) == 2 * 2 * 2
    monkeypatch.setattr(logarithms, "run", None)
    main(arguments)
    assert capsys.readouterr().out == printed
