import logging

import pandas as pd
import pytest

from benchmarks.studies.development import results
from benchmarks.studies.development.methods import PoolMethod, plain_gp
from benchmarks.studies.development.results import (
    CALIBRATION,
    REGRETS,
    finished,
    plan,
    read_table,
    run_missing,
)
from benchmarks.studies.development.suites import SUITES

SVM, MLP, FLIPPED = SUITES["svm"], SUITES["mlp"], SUITES["svm_flipped"]
pytestmark = pytest.mark.usefixtures("random_methods")


def test_the_first_seed_of_everything_comes_first(folder):
    wanted = plan([SVM, MLP], ["gp", "scaml"], folder, num_targets=3, num_seeds=2)
    assert len(wanted) == 2 * 2 * 3 * 2
    assert [each.seed for each in wanted] == [0] * 12 + [1] * 12
    assert [each.suite.name for each in wanted[:12]] == ["svm"] * 6 + ["mlp"] * 6


def test_what_ignores_the_history_runs_once_for_all_histories(folder):
    wanted = plan([SVM, FLIPPED], ["gp", "scaml"], folder, num_targets=1, num_seeds=1)
    assert [each.key[0::3] for each in wanted] == [
        ("svm", "gp"),
        ("svm", "scaml"),
        ("svm_flipped", "scaml"),
    ]


def test_a_study_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    wanted = plan([SVM], ["gp", "scaml"], folder, num_targets=2, num_seeds=1)
    assert run_missing(wanted[:2], folder, tmp_path) == []
    before = (tmp_path / REGRETS).read_text()
    began = []
    monkeypatch.setattr(
        results,
        "run",
        lambda case, method, do=results.run: began.append(method) or do(case, method),
    )
    assert run_missing(wanted, folder, tmp_path) == []
    assert len(began) == 2
    after = (tmp_path / REGRETS).read_text()
    assert after.startswith(before)
    table = finished(tmp_path)
    assert len(table) == 4 * 25
    assert set(table["target"]) == {each.target for each in wanted}
    assert table["step"].tolist() == 4 * list(range(1, 26))
    assert table["regret"].between(0, 1).all()
    assert (table["seconds"] >= 0).all()


def test_a_run_that_was_killed_while_it_was_written_is_repeated(folder, tmp_path):
    wanted = plan([SVM], ["gp", "scaml"], folder, num_targets=1, num_seeds=1)
    run_missing(wanted, folder, tmp_path)
    whole = (tmp_path / REGRETS).read_text()
    (tmp_path / REGRETS).write_text(whole[:-100])
    left = finished(tmp_path)
    assert set(left["method"]) == {"gp"}
    run_missing(wanted, folder, tmp_path)
    again = finished(tmp_path).drop(columns="seconds")
    assert len(again) == 50
    (tmp_path / REGRETS).write_text(whole)
    first = finished(tmp_path).drop(columns="seconds")
    pd.testing.assert_frame_equal(again.reset_index(drop=True), first.reset_index(drop=True))


def test_a_run_that_fails_is_logged_and_tried_again(folder, tmp_path, monkeypatch, caplog):
    def fails(X, Y, prior):
        raise RuntimeError("the model broke")

    working = results.METHODS
    broken = {**working, "scaml": PoolMethod(fails, dict, num_random=3)}
    monkeypatch.setattr(results, "METHODS", broken)
    wanted = plan([SVM], ["scaml", "gp"], folder, num_targets=1, num_seeds=1)
    with caplog.at_level(logging.WARNING):
        failed = run_missing(wanted, folder, tmp_path)
    assert [each.method for each in failed] == ["scaml"]
    assert "the model broke" in caplog.text
    assert set(finished(tmp_path)["method"]) == {"gp"}
    monkeypatch.setattr(results, "METHODS", working)
    assert run_missing(wanted, folder, tmp_path) == []
    assert set(finished(tmp_path)["method"]) == {"gp", "scaml"}


def test_nothing_is_begun_after_the_time_limit(folder, tmp_path):
    wanted = plan([SVM], ["gp"], folder, num_targets=2, num_seeds=1)
    assert run_missing(wanted, folder, tmp_path, time_limit=0.0) == []
    assert finished(tmp_path).empty


def test_calibration_is_kept_run_by_run(folder, tmp_path, monkeypatch):
    methods = {"gp": PoolMethod(plain_gp, None, lambda model, Y, pool: pool[:, 0], num_random=2)}
    monkeypatch.setattr(results, "METHODS", methods)
    run_missing(plan([SVM], ["gp"], folder, 1, 1), folder, tmp_path)
    table = read_table(tmp_path / CALIBRATION, [*results.KEYS, "points"])
    assert table["points"].tolist() == [2, 5, 10, 20]
    assert (table["z"] > 0).all()
    assert table["covered"].between(0, 1).all()
