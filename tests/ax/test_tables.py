from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.history import TENSOR_TASK, columns_of_frame, columns_of_tensors

FRAME = pd.DataFrame({"task": ["monday", "sunday"], "n": [1, 2], "loss": [0.1, np.nan]})
X, Y = torch.rand(2, 2, dtype=torch.double), torch.rand(2, 1, dtype=torch.double)


def test_values_are_plain_and_missing_ones_are_none():
    columns = columns_of_frame(FRAME.assign(flag=[True, None]), "task")
    assert columns == {
        "task": ["monday", "sunday"],
        "n": [1, 2],
        "loss": [0.1, None],
        "flag": [True, None],
    }
    assert type(columns["n"][0]) is int
    assert type(columns["loss"][0]) is float


def test_tasks_and_columns_may_be_numbers():
    frame = FRAME.assign(task=[7, 8]).rename(columns={"task": 0})
    assert columns_of_frame(frame, 0)["0"] == ["7", "8"]


def test_tensors_are_columns_by_position():
    columns = columns_of_tensors({"loss": {"a": (X, Y, Y.square())}, "cost": {"b": (X, -Y)}})
    assert columns["0"] == 2 * X[:, 0].tolist()
    assert columns["1"] == 2 * X[:, 1].tolist()
    assert columns[TENSOR_TASK] == ["a", "a", "b", "b"]
    assert columns["loss"] == [*Y[:, 0].tolist(), None, None]
    assert columns["cost"] == [None, None, *(-Y[:, 0]).tolist()]
    assert columns["loss_sem"][:2] == pytest.approx(Y[:, 0].tolist())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: columns_of_frame(FRAME, "day"), "no column 'day'"),
        (lambda: columns_of_frame(FRAME.head(0), "task"), "no rows"),
        (lambda: columns_of_frame(FRAME.assign(task=["a", None]), "task"), "lack a name"),
        (
            lambda: columns_of_frame(pd.concat([FRAME, FRAME[["n"]]], axis=1), "task"),
            r"several columns \['n'\]",
        ),
        (lambda: columns_of_tensors({"loss": {"a": (X, Y, -Y)}}), "that are not positive"),
        (lambda: columns_of_tensors({}), "no runs"),
        (lambda: columns_of_tensors({"loss": {"a": (X[:0], Y[:0])}}), "no runs"),
        (lambda: columns_of_tensors({"loss": {"a": (Y,) * 4}}), "n x d"),
        (lambda: columns_of_tensors({"loss": {"a": (X, Y[:, 0])}}), "n x d"),
        (lambda: columns_of_tensors({"loss": {"a": (X, Y), "b": (Y, Y)}}), "numbers of inputs"),
    ],
)
def test_what_cannot_be_read_is_refused(make, message):
    with pytest.raises(UserInputError, match=message):
        make()


def test_columns_that_json_does_not_hold_are_left_out(caplog):
    frame = FRAME.assign(when=pd.Timestamp("2024-01-01"), took=pd.Timedelta("1h"))
    with caplog.at_level("INFO"):
        assert columns_of_frame(frame, "task") == columns_of_frame(FRAME, "task")
    assert "['took', 'when'] hold neither numbers nor words" in caplog.text
