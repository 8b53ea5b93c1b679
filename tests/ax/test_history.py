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

from botorch_transfer.ax.history import TransferHistory

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
            "'loss' has values that are no numbers",
        ),
        (
            lambda: TransferHistory.from_frame(FRAME.assign(loss_sem="?")).runs("loss", ["C"]),
            "'loss_sem' has values that are no numbers",
        ),
    ],
)
def test_unfit_histories_are_refused(make, message):
    with pytest.raises(UserInputError, match=message):
        make()
