from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.tables import make_table
from botorch_transfer import CategoricalParameter, FloatParameter, IntegerParameter, SearchSpace

SPACE = SearchSpace(
    [
        CategoricalParameter("kernel", ("rbf", "linear")),
        FloatParameter("C", 1.0, 100.0, log=True),
        IntegerParameter("degree", 1, 3, active_if={"kernel": "rbf"}),
    ]
)


def rows(tasks=("a", "b", "c", "d")):
    return pd.DataFrame(
        [
            {"task": task, "kernel": kernel, "C": C, "degree": degree, "loss": C / 10 + shift}
            for shift, task in enumerate(tasks)
            for kernel, C, degree in [
                ("rbf", 1.0, 1),
                ("rbf", 10.0, 3),
                ("linear", 100.0, np.nan),
                ("rbf", 1.0, 1),
            ]
        ]
    )


def table(frame=None, **options):
    frame = rows() if frame is None else frame
    return make_table("toy", frame, SPACE, "loss", "min", **options)


def test_all_kinds_of_parameters_are_encoded_and_losses_negated():
    X, Y = table().tasks["b"]
    expected = [[1, 0, 0, 0], [1, 0, 0.5, 1], [0, 1, 1, 0.5], [1, 0, 0, 0]]
    torch.testing.assert_close(X, torch.tensor(expected, dtype=torch.double))
    torch.testing.assert_close(Y, -torch.tensor([[1.1], [2.0], [11.0], [1.1]], dtype=torch.double))


def test_rows_of_the_frame_follow_the_tensors():
    frame = rows().sample(frac=1.0, random_state=0)
    frame.loc[5, "loss"] = np.nan
    read = table(frame)
    for name, (X, Y) in read.tasks.items():
        own = read.frame[read.frame["task"] == name]
        assert torch.equal(read.space.encode(own), X)
        np.testing.assert_array_equal(-own["loss"].to_numpy(), Y.flatten().numpy())
    assert len(read.frame) == len(frame) - 1


def test_tasks_without_any_outcome_are_left_out():
    frame = rows()
    frame.loc[frame["task"] == "c", "loss"] = np.nan
    read = table(frame, failed="worst")
    assert list(read.tasks) == ["a", "b", "d"]
    assert set(read.frame["task"]) == {"a", "b", "d"}


def test_a_problem_is_a_task_over_its_rows_with_the_others_as_history():
    read = table()
    problem = read.problem("b")
    assert problem.name == "toy: b"
    assert list(problem.history) == ["a", "c", "d"]
    assert problem.X.shape == (3, 4)  # the repeated configuration once
    assert problem.best_known == read.best_known("b") == pytest.approx(-1.1)
    assert all(torch.equal(problem.history[name][1], read.tasks[name][1]) for name in "acd")


def test_sources_are_drawn_the_same_way_every_time():
    read = table(rows(tuple("abcdefghij")))
    drawn = {target: list(read.problem(target, num_sources=3).history) for target in read.tasks}
    assert drawn == {t: list(read.problem(t, num_sources=3).history) for t in read.tasks}
    assert all(len(names) == 3 and target not in names for target, names in drawn.items())
    assert len({tuple(names) for names in drawn.values()}) > 3
    assert list(read.problem("a", sources=["c", "b"]).history) == ["c", "b"]
    assert len(read.problem("a", num_sources=99).history) == 9


def test_a_part_of_a_table():
    part = table().select(["d", "a"])
    assert list(part.tasks) == ["d", "a"]
    assert set(part.frame["task"]) == {"a", "d"}
    small = rows().drop(index=[0, 1])
    assert list(table(small).at_least(3).tasks) == ["b", "c", "d"]


def test_refusals():
    with pytest.raises(ValueError, match="'toy' has no task 'x'"):
        table().problem("x")
    with pytest.raises(ValueError, match="'a' can't be its own source"):
        table().problem("a", sources=["a", "b"])
