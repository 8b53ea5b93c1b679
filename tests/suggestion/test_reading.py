"""Reading tables: runs that are done, failed or pending, and what cannot be understood."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame, Series

from botorch_transfer import (
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
    SimplexParameter,
    SourceGPs,
    from_dataframe,
    suggest,
)
from botorch_transfer.suggestion import read_study
from tests.suggestion.test_next_rows import HISTORY, LR, SPACE


def test_runs_are_done_failed_or_pending():
    runs = SPACE.sample(6, seed=3)
    runs["loss"] = [np.inf, 2.0, np.nan, np.inf, 1.0, 3.0]
    runs["status"] = [None, "ok", "running", "", "OK", " Crashed"]
    read = read_study(SPACE, None, runs).runs
    assert torch.equal(read.X, SPACE.encode(runs.iloc[[1, 4, 5]]))
    assert read.Y.flatten().tolist() == [-2.0, -1.0, -3.0]
    assert read.succeeded.tolist() == [True, True, False]
    assert torch.equal(read.good, SPACE.encode(runs.iloc[[1, 4]]))
    assert torch.equal(read.failed, SPACE.encode(runs.iloc[[0, 3, 5]]))
    assert torch.equal(read.waiting, SPACE.encode(runs.iloc[[2]]))
    assert len(read.ended) == 0
    read = read_study(SPACE, None, runs.assign(status="abandoned")).runs
    assert torch.equal(read.ended, SPACE.encode(runs.iloc[[2]]))
    assert len(read.waiting) == 0


@pytest.mark.parametrize(("cell", "log"), [("1,5", False), (-1.0, True)])
def test_an_error_in_the_runs_names_them(cell, log):
    runs = SPACE.sample(2, seed=1).assign(loss=Series([0.5, cell], dtype=object))
    with pytest.raises(InputDataError, match=r"In the runs: The column 'loss' has .* in row 1"):
        read_study(SPACE, None, runs, log=log)


def test_a_renamed_column_may_be_the_noise():
    history = HISTORY.assign(err=0.1)
    tables = read_study(SPACE, history, noise="sem", rename={"err": "sem"})
    assert {
        float(task.Yvar.mean().round(decimals=6)) for task in tables.sources["loss"].values()
    } == {0.01}
    assert "sem" not in history


RUNS = SPACE.sample(2, seed=0).assign(loss=[0.2, 0.3])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"space": [LR]}, TypeError, "space is a list: give a SearchSpace"),
        ({"history": "runs.csv"}, TypeError, "history is a str: give one DataFrame"),
        ({"runs": [1]}, TypeError, "runs is a list"),
        ({"prior": 3}, ValueError, "Give either a history or a prior"),
        ({"history": None, "prior": "file"}, TypeError, "no prior of the outcome 'loss'"),
        ({"n": 0}, ValueError, "n is 0"),
        ({"model": 3}, TypeError, "model is 3: give a model class"),
        ({"goal": "less"}, ValueError, "goal is 'less'"),
        ({"goal": ["min", "max"]}, ValueError, "1 outcomes and 2 goals"),
        ({"outcome": []}, ValueError, "0 outcomes"),
        ({"outcome": "los"}, InputDataError, r"no column 'los' \(but 'loss'\)"),
        ({"task": "tasks"}, InputDataError, r"no column 'tasks' \(but 'task'\)"),
        ({"outcome": "depth"}, ValueError, "parameter 'depth' has the name of another column"),
        ({"constraints": {"memory": "5"}}, ValueError, "write it as '<= 5'"),
        ({"constraints": {"memory": "<= much"}}, ValueError, "write it as '<= 5'"),
        ({"constraints": {"depth": "<= 5"}}, ValueError, "narrow the parameter's range"),
        ({"constraints": {"loss": "<= 5"}}, ValueError, "'loss' is named twice"),
        ({"noise": "sem"}, InputDataError, "No table has the column 'sem'"),
        ({"noise": {"memory": "sem"}}, ValueError, "'memory', which is no outcome"),
        (
            {"noise": "sem", "outcome": ["loss", "depth"]},
            ValueError,
            "noise is 'sem' for 2 outcomes",
        ),
        ({"missing": {"wd": 3}}, ValueError, "missing names 'wd'"),
        ({"runs": RUNS.rename(columns={"depth": "dept"})}, InputDataError, "but one of 'dept'"),
        ({"log": "size"}, ValueError, "log names 'size', which is no outcome"),
        ({"constraints": {"u": ">= 0"}, "log": ["u"]}, ValueError, "'u' has no logarithm"),
        ({"runs": RUNS.assign(loss=-1.0), "log": True}, InputDataError, "'loss' has -1 in row 0"),
        ({"runs": RUNS.assign(depth=20)}, InputDataError, "In the runs: Parameter 'depth' is 20"),
        (
            {"runs": RUNS.assign(loss="0,3")},
            InputDataError,
            "has '0,3' in row 0, which has digits and is no number: correct it",
        ),
        (
            {"runs": RUNS.rename(columns={"loss": "Loss "})},
            InputDataError,
            "no column 'loss', but one of 'Loss '",
        ),
        (
            {"runs": RUNS.assign(sem=[0.1, -0.2]), "noise": "sem"},
            InputDataError,
            "The column 'sem' has -0.2 in row 1, which is no standard error",
        ),
        ({"history": HISTORY.assign(loss=np.nan)}, InputDataError, "No run has a finite outcome"),
    ],
)
def test_errors_are_one_sentence(arguments, kind, message):
    with pytest.raises(kind, match=message) as caught:
        suggest(**{"space": SPACE, "history": HISTORY, **arguments})
    assert "\n" not in str(caught.value)


def test_a_misspelt_column_of_noise_is_found_with_a_prior_too():
    prior = SourceGPs.fit(from_dataframe(HISTORY, SPACE, "loss", "task"))
    with pytest.raises(InputDataError, match="No table has the column 'sem'"):
        suggest(SPACE, None, runs=RUNS, prior=prior, noise="sem")


def test_a_model_of_several_outcomes_needs_a_prior_of_each():
    prior = SourceGPs.fit(from_dataframe(HISTORY, SPACE, "loss", "task"))
    with pytest.raises(TypeError, match="no prior of the outcome 'memory'"):
        suggest(SPACE, None, prior={"loss": prior}, constraints={"memory": "<= 5"})


def test_a_run_slightly_outside_of_a_range_keeps_its_place(caplog):
    space = SearchSpace([FloatParameter("T", 20, 120), IntegerParameter("n", 1, 4)])
    old = DataFrame({"task": "a", "T": ["20 °C", "50 °C"], "n": [1, 2], "loss": [0.5, 0.2]})
    runs = DataFrame({"T": [124.0, 20.0, 120.000001], "n": [2, 1, 3], "loss": [0.1, 0.2, None]})
    with caplog.at_level("INFO"):
        tables = read_study(space, old, runs)
    assert tables.runs.X[0, 0] == pytest.approx(1.04)
    assert caplog.messages == [
        "Read as numbers: 'T' in °C",
        "1 of the runs lie slightly outside of the search space, and are kept where they are "
        "(row 0)",
    ]
    for name, cell in (("T", 135.0), ("n", 7.5), ("T", None)):
        wrong = runs.assign(T=20.0, n=1).astype({name: float})
        wrong.loc[1, name] = cell
        with pytest.raises(InputDataError, match=f"In the runs: Parameter '{name}' .* in row 1, "):
            read_study(space, old, wrong)


def test_a_run_off_the_levels_keeps_its_place():
    mixture = SimplexParameter("mixture", ("a", "b"), step=0.5)
    space = SearchSpace([OrdinalParameter("x", (0, 5, 10)), IntegerParameter("n", 1, 4), mixture])
    runs = DataFrame({"x": [0.01, 10.01], "n": [2.5, 4], "a": [0.26, 1.0], "b": [0.74, 0.0]})
    found = read_study(space, None, runs.assign(loss=[0.1, 0.2])).runs.X
    expected = [[0.001, 0.5, 0.26, 0.74], [1.001, 1.0, 1.0, 0.0]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double))
    for changes, message in (
        ({"n": [2.5, 40]}, "'n' is 40.0 in row 1, outside"),
        ({"x": [0.01, 100]}, "'x' is 100.0 in row 1, not one of 0, 5, 10"),
        ({"b": [0.74, 0.5]}, "'mixture' is 1.5 in row 1, the sum of a, b, which must be 1"),
    ):
        with pytest.raises(InputDataError, match=f"In the runs: Parameter {message}"):
            read_study(space, None, runs.assign(loss=[0.1, 0.2], **changes))


def test_constraints_and_fixed_values_of_other_types_are_refused():
    with pytest.raises(TypeError, match="constraints is 'x <= 1': put the one into a list"):
        suggest(SPACE, None, constraints="x <= 1")
    with pytest.raises(TypeError, match="give a dictionary with names as keys"):
        suggest(SPACE, None, fixed=["x"])
    X = SPACE.encode(SPACE.sample(3, seed=0))
    prior = SourceGPs.fit({"monday": (X, X[:, :1])}, num_restarts=0)
    with pytest.raises(ValueError, match="'sorted' ranks the rows of old tasks: give a history"):
        suggest(SPACE, None, prior=prior, model="sorted")
