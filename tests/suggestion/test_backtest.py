"""Replays of old tasks: what is saved, what is recommended, and going on after an interruption."""

import json
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP

from botorch_transfer import (
    FloatParameter,
    SearchSpace,
    TransferGP,
    WeightedSourceGP,
    backtest,
    from_dataframe,
)
from botorch_transfer.__main__ import main
from botorch_transfer.model import TargetGP
from botorch_transfer.models import ScaMLGP
from botorch_transfer.suggestion import Backtest, Outcome
from botorch_transfer.suggestion.outcomes import mean_rank
from botorch_transfer.suggestion.region import Region
from tests.suggestion.brief_search import brief_search

room = import_module("botorch_transfer.suggestion.backtest")  # the function has its name
SPACE = SearchSpace([FloatParameter("x", 0.0, 1.0)])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(TargetGP, "num_restarts", 0)
    monkeypatch.setattr(room, "CHECKPOINTS", (1, 2, 3))


def history(num_tasks=3, num_rows=6, best=0.4):
    x = np.linspace(0.0, 1.0, num_rows)
    parts = [
        pd.DataFrame({"task": f"case {i}", "x": x, "loss": (x - best) ** 2 * (i + 1)})
        for i in range(num_tasks)
    ]
    return pd.concat(parts, ignore_index=True)


def test_tasks_that_agree_save_evaluations():
    with brief_search():
        found = backtest(SPACE, history(num_rows=5), goal="min", progress=False)
    assert found.recommended == "TransferGP"
    table = found.table.set_index(["task", "model"])
    assert set(table.index.get_level_values("model")) == {
        "TransferGP", "sorted", "SingleTaskGP", "random"
    }  # fmt: skip
    best = table.loc["case 1"]
    least = history(num_rows=5)["loss"][5:10].min()
    assert best.loc["sorted", "best_1"] == pytest.approx(least)
    assert best.loc["TransferGP", "best_1"] == pytest.approx(least)
    # The plain GP against itself saves nothing, however early it is there.
    assert (table.xs("SingleTaskGP", level="model")["saved"] == 0).all()
    random = best.loc["random", ["best_1", "best_2", "best_3"]].to_numpy(dtype=float)
    assert (np.diff(random) < 0).all()
    assert random[0] == pytest.approx(history(num_rows=5)["loss"][5:10].mean(), rel=0.15)
    assert str(found).startswith("On your 3 tasks, a plain GP reaches its best outcome")
    assert str(found).endswith(
        "Use model='TransferGP'. Replayed: 3 of 3 tasks, at most 100 rows each."
    )


def test_equal_rows_have_their_mean_and_rows_outside_are_left_out():
    X = torch.tensor([[0.1], [0.1], [0.5], [1.5]], dtype=torch.double)
    Y = torch.tensor([[1.0], [3.0], [5.0], [9.0]], dtype=torch.double)
    task = room.SupervisedDataset(X, Y, feature_names=["x"], outcome_names=["y"])
    rows, values = room._pool(Region(SPACE), task)
    assert rows["x"].tolist() == pytest.approx([0.1, 0.5])
    assert values.tolist() == [2.0, 5.0]


def test_what_is_saved_and_what_it_costs():
    curves = {
        ("a", "TransferGP"): np.array([5.0, 5.0, 5.0]),
        ("a", "SingleTaskGP"): np.array([1.0, 2.0, 5.0]),
        ("b", "TransferGP"): np.array([1.0, 1.0, 1.0]),
        ("b", "SingleTaskGP"): np.array([1.0, 2.0, 2.0]),
    }
    spreads = {"a": np.array([0.0, 1.0, 5.0]), "b": np.array([0.0, 1.0, 5.0])}
    table, needed = room._tabulate(Outcome("loss", -1.0), curves, spreads)
    saved = table.set_index(["task", "model"])["saved"]
    assert saved["a", "TransferGP"] == 2
    assert saved["b", "TransferGP"] == -2  # not within three, so four instead of two
    assert needed == 2.5
    assert table["best_1"].tolist() == [-5.0, -1.0, -1.0, -1.0]  # a loss
    assert table["distance"][0] == 0.0
    found = Backtest(table, "sorted", "TransferGP", needed, "")
    assert "on `b` they cost 2 or more evaluations" in str(found)
    assert "outcome after 2.5 evaluations. Old runs would have saved" in str(found)
    assert "evaluations (90 % interval: -2.0 to 2.0); this difference" in str(found)
    found = Backtest(table, "SingleTaskGP", "SingleTaskGP", needed, "")
    assert str(found).startswith("The first model is the plain GP: name another model first.")


def test_another_model_is_recommended_only_if_it_is_better_beyond_chance():
    def table(gains):
        rows = [("TransferGP", i, 0.5) for i in range(4)]
        rows += [("sorted", i, 0.5 - gain) for i, gain in enumerate(gains)]
        return pd.DataFrame(rows, columns=["model", "task", "distance"])

    names = ["TransferGP", "sorted"]
    assert room._recommended(table([0.2, 0.25, 0.2, 0.3]), names) == "sorted"
    assert room._recommended(table([0.4, -0.3, 0.2, -0.2]), names) == "TransferGP"


def test_an_interrupted_backtest_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "finished.csv"
    whole = backtest(SPACE, history(), "loss", "min", ["sorted"], progress=False)
    replay, done = room._replay, []

    def interrupted(model, *given):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(model)
        return replay(model, *given)

    monkeypatch.setattr(room, "_replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backtest(SPACE, history(), "loss", "min", ["sorted"], resume=path, progress=False)
    done[:] = [None] * 5  # no further interruption
    found = backtest(SPACE, history(), "loss", "min", ["sorted"], resume=path, progress=False)
    assert len(done) == 5 + 2  # of six runs, four had been finished
    pd.testing.assert_frame_equal(found.table, whole.table)
    backtest(SPACE, history(), "loss", "min", ["sorted"], resume=path, progress=False)
    assert len(done) == 7
    new = backtest(SPACE, history(best=0.8), "loss", "min", ["sorted"], resume=path, progress=False)
    assert len(done) == 13  # other data
    assert not new.table.equals(found.table)


def test_large_histories_are_sampled_and_the_sentence_says_so(monkeypatch):
    monkeypatch.setattr(room, "MAX_REPLAYED", 2)
    monkeypatch.setattr(room, "MAX_ROWS", 5)
    monkeypatch.setattr(room, "MAX_SOURCES", 3)
    found = backtest(SPACE, history(5), goal="min", models=["sorted"], progress=False)
    assert found.table["task"].nunique() == 2
    sample = "Replayed: 2 of 5 tasks, at most 5 rows each, with 3 tasks to learn from."
    assert str(found).endswith(sample)


def test_priors_that_can_leave_a_task_out_are_fitted_once():
    data = from_dataframe(history(3), SPACE, "loss", "task", "min", changed=True)
    prior = room._learned(TransferGP, data)
    left = room._without(prior, data, "case 1")
    assert {each.task_names for each in left.values()} == {("case 0", "case 2")}
    for make in (WeightedSourceGP, mean_rank, SingleTaskGP):
        assert room._learned(make, data) is data
    assert list(room._without(data, data, "case 1")) == ["case 0", "case 2"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"history": history(1)}, InputDataError, "fewer than two tasks: give two"),
        ({"history": history(2, 3)}, InputDataError, "Each task has fewer than 4 different rows"),
        ({"history": history().assign(loss=1.0)}, InputDataError, "or constant outcomes: give"),
        ({"space": None, "history": history()}, TypeError, "space is None: give a SearchSpace"),
        ({"history": history(), "resume": 5}, TypeError, "resume is 5: give a path"),
        ({"history": history(), "resume": "nowhere/x.csv"}, InputDataError, "name another file"),
        ({"history": history(), "models": []}, ValueError, "models is .*: name a model"),
        ({"history": history(), "models": [dict]}, ValueError, "There is no model 'dict'"),
        ({"history": history(), "models": ["nothing"]}, ValueError, "There is no model 'nothing'"),
    ],
)
def test_what_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        backtest(**{"space": SPACE, "goal": "min", "progress": False, **options})


def test_another_table_is_not_taken_for_finished_runs(tmp_path):
    path = tmp_path / "runs.csv"
    columns = ",".join(room.COLUMNS).encode()
    wrong = [columns + rest for rest in (b"\na,b,c,1,?\n", b"\n1,2\n1,2,3,4,5,6\n")]
    for before in (history().to_csv().encode(), bytes(range(256)), b"\n\n", *wrong):
        path.write_bytes(before)
        with pytest.raises(InputDataError, match="name another file"):
            backtest(SPACE, history(), goal="min", resume=path, progress=False)
        assert path.read_bytes() == before


def test_the_command(tmp_path, capsys):
    (tmp_path / "space.json").write_text(json.dumps(SPACE.to_dict()))
    history().to_csv(tmp_path / "old.csv", index=False)
    files = [str(tmp_path / "space.json"), str(tmp_path / "old.csv")]
    options = ["--models", "sorted", "--resume", str(tmp_path / "finished.csv")]
    assert main(["backtest", *files, *options]) == 0
    printed = capsys.readouterr().out
    assert "evaluations. Old runs would have saved" in printed
    assert len(pd.read_csv(tmp_path / "finished.csv")) == 3 * 2 * 3
    assert main(["backtest", *files, "--outcome", "loss", "time"]) == 2


def test_one_task_says_nothing_of_others():
    table = pd.DataFrame({"task": ["a"], "model": ["sorted"], "saved": [3]})
    found = Backtest(table, "sorted", "sorted", needed=4.0, sample="1 task")
    assert found.interval() == (-np.inf, np.inf)


def test_tasks_outside_of_the_space_are_named_without_a_warning(recwarn):
    far = history()
    far.loc[far["task"] == "case 2", "x"] += 5
    found = backtest(SPACE, far, goal="min", models=["sorted"], progress=False)
    assert str(found).endswith("(under 4 rows in the space, or equal outcomes): 'case 2'.")
    X = torch.tensor([[0.1], [0.5], [1.5]], dtype=torch.double)
    task = room.SupervisedDataset(X, X.sin(), feature_names=["x"], outcome_names=["y"])
    assert room._learned(ScaMLGP, {"a": task}).num_tasks == 1
    assert not [each for each in recwarn if "unit cube" in str(each.message)]
