from __future__ import annotations

import copy
import gc
import json
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.history import TENSOR_TASK, TransferHistory

FRAME = pd.DataFrame(
    {
        "task": ["monday", "monday", "tuesday"],
        "C": [1.0, 10.0, 1 / 3],
        "kind": ["a", "b", None],
        "loss": [0.1, 0.2, np.inf],
        "cost": [np.nan, 3.0, 5.0],
    }
)


def test_storage_is_exact_and_equal_content_has_one_key():
    history = TransferHistory.from_frame(FRAME, missing={"kind": "a"})
    stored = json.loads(json.dumps(history.to_json()))
    assert stored.pop("__type") == "TransferHistory"
    again = TransferHistory(**stored)
    assert again.key == history.key
    assert again == history
    assert hash(again) == hash(history)
    assert [run["C"] for run in again.runs("cost", ["C", "kind"]).parameters] == [10.0, 1 / 3]
    assert TransferHistory.from_frame(FRAME.assign(C=2.0)).key != history.key
    assert copy.deepcopy(history) is history


def test_recalled_by_key_only_while_in_memory():
    history = TransferHistory.from_frame(FRAME.assign(C=[5.0, 6.0, 7.0]))
    key = history.key
    assert TransferHistory.recall(key) is history
    assert TransferHistory.recall(history) is history
    del history
    gc.collect()
    with pytest.raises(UserInputError, match="load that first"):
        TransferHistory.recall(key)


def test_runs_without_a_finite_value_are_left_out_and_counted(caplog):
    history = TransferHistory.from_frame(FRAME, missing={"kind": "z"})
    with caplog.at_level(logging.INFO):
        runs = history.runs("loss", ["C", "kind"])
    assert runs.means.tolist() == [0.1, 0.2]
    assert runs.tasks == ["monday", "monday"]
    assert "1 old runs have no finite loss" in caplog.text
    assert history.runs("cost", ["kind"]).parameters == [{"kind": "b"}, {"kind": "z"}]
    assert history.metrics(["loss", "accuracy"]) == ["loss"]


def test_moments_are_those_of_finite_outcomes():
    history = TransferHistory.from_frame(FRAME)
    assert history.moments("loss") == pytest.approx((0.15, np.std([0.1, 0.2], ddof=1)))
    constant = TransferHistory.from_frame(FRAME.assign(loss=2.0))
    assert constant.moments("loss") == (2.0, 1.0)


def test_tensors_are_read_in_order():
    X, Y = torch.rand(3, 2, dtype=torch.double), torch.rand(3, 1, dtype=torch.double)
    history = TransferHistory.from_tensors(
        {"loss": {"monday": (X, Y, Y.square())}, "cost": {"sunday": (X, -Y)}}
    )
    runs = history.runs("loss", ["a", "b"])
    np.testing.assert_array_equal([[run["a"], run["b"]] for run in runs.parameters], X)
    np.testing.assert_allclose(runs.sems, Y.squeeze(-1), rtol=1e-12)
    assert set(history.runs("cost", ["a", "b"]).tasks) == {"sunday"}
    with pytest.raises(UserInputError, match="have 2 columns, and the search space has the 1"):
        history.runs("cost", ["a"])
    with pytest.raises(UserInputError, match="lack the parameter 'c'"):
        history.runs("cost", ["a", "b", "c"])


def test_parameters_may_have_any_name():
    frame = pd.DataFrame(
        {"old": ["monday", "sunday"], "task": [1.0, 2.0], "mean": [3.0, 4.0], "sem": [5.0, 6.0]}
    )
    history = TransferHistory.from_frame(frame.assign(loss=[0.1, 0.2]), task="old")
    runs = history.runs("loss", ["task", "mean", "sem"])
    assert runs.parameters == frame[["task", "mean", "sem"]].to_dict("records")
    assert runs.tasks == ["monday", "sunday"]
    assert runs.means.tolist() == [0.1, 0.2]
    assert np.isnan(runs.sems).all()
    X = torch.rand(2, 1, dtype=torch.double)
    tensors = TransferHistory.from_tensors({"task": {"monday": (X, 2 * X)}})
    assert tensors.runs("task", ["x"]).means.tolist() == (2 * X).flatten().tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransferHistory.from_frame(FRAME).runs("loss", ["task"]), "is a parameter"),
        (
            lambda: TransferHistory.from_frame(FRAME, missing={"gama": 1.0}).runs("loss", ["C"]),
            "values of \\['gama'\\], which are no parameters",
        ),
        (
            lambda: TransferHistory.from_frame(FRAME.assign(loss_sem=0.0)).runs("loss", ["C"]),
            "'loss_sem' has standard errors that are not positive",
        ),
        (lambda: TransferHistory.from_frame(FRAME).runs("loss", ["gamma"]), "'gamma'"),
        (lambda: TransferHistory.from_frame(FRAME).runs("cost", ["kind"]), "'kind'"),
        (
            lambda: TransferHistory.from_frame(FRAME.assign(loss=np.nan)).runs("loss", ["C"]),
            "no finite value",
        ),
        (
            lambda: TransferHistory.from_frame(FRAME.assign(loss=np.nan)).moments("loss"),
            "no finite value",
        ),
        (
            lambda: TransferHistory.from_frame(FRAME.assign(loss="low")).moments("loss"),
            "'loss' has values that are not numbers",
        ),
        (
            lambda: TransferHistory.from_frame(FRAME.assign(loss_sem="?")).runs("loss", ["C"]),
            "'loss_sem' has values that are not numbers",
        ),
    ],
)
def test_unfit_histories_are_refused(make, message):
    with pytest.raises(UserInputError, match=message):
        make()


TABLE = pd.DataFrame({"task": ["monday", "sunday"], "n": [1, 2], "loss": [0.1, np.nan]})
X, Y = torch.rand(2, 2, dtype=torch.double), torch.rand(2, 1, dtype=torch.double)


def read(frame, task):
    return TransferHistory.from_frame(frame, task).columns


def read_tensors(metrics):
    return TransferHistory.from_tensors(metrics).columns


def test_values_are_plain_and_missing_ones_are_none():
    columns = read(TABLE.assign(flag=[True, None]), "task")
    assert columns == {
        "task": ["monday", "sunday"],
        "n": [1, 2],
        "loss": [0.1, None],
        "flag": [True, None],
    }
    assert type(columns["n"][0]) is int
    assert type(columns["loss"][0]) is float


def test_tasks_and_columns_may_be_numbers():
    frame = TABLE.assign(task=[7, 8]).rename(columns={"task": 0})
    assert read(frame, 0)["0"] == ["7", "8"]


def test_tensors_are_columns_by_position():
    columns = read_tensors({"loss": {"a": (X, Y, Y.square())}, "cost": {"b": (X, -Y)}})
    assert columns["0"] == 2 * X[:, 0].tolist()
    assert columns["1"] == 2 * X[:, 1].tolist()
    assert columns[TENSOR_TASK] == ["a", "a", "b", "b"]
    assert columns["loss"] == [*Y[:, 0].tolist(), None, None]
    assert columns["cost"] == [None, None, *(-Y[:, 0]).tolist()]
    assert columns["loss_sem"][:2] == pytest.approx(Y[:, 0].tolist())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read(TABLE, "day"), "no column 'day'"),
        (lambda: read(TABLE.head(0), "task"), "no rows"),
        (lambda: read(TABLE.assign(task=["a", None]), "task"), "lack a name"),
        (
            lambda: read(pd.concat([TABLE, TABLE[["n"]]], axis=1), "task"),
            r"several columns \['n'\]",
        ),
        (lambda: read_tensors({"loss": {"a": (X, Y, -Y)}}), "that are not positive"),
        (lambda: read_tensors({}), "no runs"),
        (lambda: read_tensors({"loss": {"a": (X[:0], Y[:0])}}), "no runs"),
        (lambda: read_tensors({"loss": {"a": (Y,) * 4}}), "n x d"),
        (lambda: read_tensors({"loss": {"a": (X, Y[:, 0])}}), "n x d"),
        (lambda: read_tensors({"loss": {"a": (X, Y), "b": (Y, Y)}}), "differ in their inputs"),
    ],
)
def test_what_cannot_be_read_is_refused(make, message):
    with pytest.raises(UserInputError, match=message):
        make()


def test_columns_that_json_does_not_hold_are_left_out(caplog):
    frame = TABLE.assign(when=pd.Timestamp("2024-01-01"), took=pd.Timedelta("1h"))
    with caplog.at_level("INFO"):
        assert read(frame, "task") == read(TABLE, "task")
    assert "columns without numbers or text: ['took', 'when']" in caplog.text
