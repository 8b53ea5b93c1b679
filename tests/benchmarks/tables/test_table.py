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


def test_a_problem_is_a_task_over_its_rows_with_the_others_as_history():
    read = table()
    problem = read.problem("b")
    assert problem.name == "toy: b"
    assert list(problem.history) == ["a", "c", "d"]
    assert problem.X.shape == (3, 4)  # the repeated configuration once
    assert problem.best_known == read.best_known("b") == pytest.approx(-1.1)
    assert all(torch.equal(problem.history[name][1], read.tasks[name][1]) for name in "acd")
