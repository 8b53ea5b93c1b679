import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from ax.exceptions.core import UserInputError
from ax.storage.json_store.decoder import object_from_json
from ax.storage.json_store.encoder import object_to_json

from botorch_transfer.ax.history import TASK, TransferHistory
from botorch_transfer.data.measurements import Outcome

LOSS = Outcome("loss", -1.0)

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
    again = object_from_json(json.loads(json.dumps(object_to_json(history))))
    assert isinstance(again, TransferHistory)
    assert again == history
    assert again.key == history.key
    assert again.columns["C"] == [1.0, 10.0, 1 / 3]
    assert TransferHistory.from_frame(FRAME.assign(C=2.0)).key != history.key
    assert copy.deepcopy(history) is history


def test_moments_are_those_of_finite_outcomes():
    history = TransferHistory.from_frame(FRAME)
    assert history.moments(LOSS) == pytest.approx((0.15, np.std([0.1, 0.2], ddof=1)))
    constant = TransferHistory.from_frame(FRAME.assign(loss=2.0))
    assert constant.moments(LOSS) == (2.0, 1.0)
    assert TransferHistory.from_frame(FRAME.head(1)).moments(LOSS) == (0.1, 1.0)


def test_metrics_without_a_finite_value_are_refused():
    """Text is none."""
    for loss in (np.nan, np.inf, "low"):
        with pytest.raises(UserInputError, match="no finite value of 'loss'"):
            TransferHistory.from_frame(FRAME.assign(loss=loss)).moments(LOSS)


TABLE = pd.DataFrame({"task": ["monday", "sunday"], "n": [1, 2], "loss": [0.1, np.nan]})
X, Y = torch.rand(2, 2, dtype=torch.double), torch.rand(2, 1, dtype=torch.double)


def read(frame, task):
    return TransferHistory.from_frame(frame, task).columns


def read_tensors(metrics):
    return TransferHistory.from_tensors(metrics).columns


def test_values_are_plain_and_missing_ones_are_none():
    columns = read(TABLE.assign(flag=[True, None]), "task")
    days = ["monday", "sunday"]
    assert columns == {TASK: days, "n": [1, 2], "loss": [0.1, None], "flag": [True, None]}
    assert type(columns["n"][0]) is int
    assert type(columns["loss"][0]) is float


def test_tasks_and_columns_may_be_numbers():
    frame = TABLE.assign(task=[7, 8]).rename(columns={"task": 0})
    assert read(frame, 0)[TASK] == ["7", "8"]


def test_tensors_are_columns_by_position():
    columns = read_tensors({"loss": {"a": (X, Y, Y.square())}, "cost": {"b": (X, -Y)}})
    assert columns["0"] == 2 * X[:, 0].tolist()
    assert columns["1"] == 2 * X[:, 1].tolist()
    assert columns[TASK] == ["a", "a", "b", "b"]
    assert columns["loss"] == [*Y[:, 0].tolist(), None, None]
    assert columns["cost"] == [None, None, *(-Y[:, 0]).tolist()]
    assert columns["loss_sem"][:2] == pytest.approx(Y[:, 0].tolist())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read(TABLE, "day"), "no column 'day'"),
        (lambda: read(TABLE.assign(task=["a", None]), "task"), "no value in row 1, so"),
        (lambda: read(pd.concat([TABLE, TABLE[["n"]]], axis=1), "task"), "several columns 'n'"),
        (lambda: read_tensors({"loss": {"a": (X, Y, -Y)}}), "a value that is not positive"),
        (lambda: read_tensors({"loss": {"a": (Y,) * 4}}), "'loss of a' is a tuple"),
        (lambda: read_tensors({"loss": {"a": (X, Y[:, 0])}}), "give a 2 x 1 tensor"),
        (lambda: read_tensors({"loss": {"a": (X, Y / 0)}}), "'loss of a'.* infinite"),
        (
            lambda: read_tensors({"loss": {"a": (X, Y), "b": (Y, Y)}}),
            "give all tasks the same inputs",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(make, message):
    with pytest.raises(UserInputError, match=message):
        make()


def test_cells_that_json_does_not_hold_become_text():
    frame = TABLE.assign(when=pd.Timestamp("2024-01-01"), number=np.array([1, None]))
    columns = read(frame, "task")
    assert columns.pop("when") == ["2024-01-01 00:00:00"] * 2
    assert columns.pop("number") == [1, None]
    assert columns == read(TABLE, "task")
