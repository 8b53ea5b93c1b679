import logging
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from ax.adapter.transforms.cast import Cast
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.history import TransferHistory
from tests.ax.adapters import encoded, encoded_runs
from tests.ax.conftest import (
    bowls,
    corner_space,
    dependent_space,
    derived_space,
    mixed_space,
    plain_space,
)

RUNS = pd.DataFrame(
    {
        "task": ["monday", "monday", "sunday"],
        "rate": [1e-4, 1.0, 1e-2],
        "depth": [1, 5, 3],
        "kind": ["a", "b", "c"],
        "loss": [1.0, 2.0, 3.0],
        "loss_sem": [0.1, 0.2, np.nan],
    }
)


def test_logarithms_integers_choices_and_noise():
    data = encoded_runs(mixed_space(), RUNS)
    X, Y, Yvar = data["monday"]
    assert X[:, :2].tolist() == [[-4.0, 1.0], [0.0, 5.0]]
    assert X[:, 2:].sum(dim=-1).tolist() == [1.0, 1.0]
    assert not torch.equal(X[0, 2:], X[1, 2:])
    assert Y.tolist() == [[1.0], [2.0]]
    torch.testing.assert_close(Yvar, torch.tensor([[0.01], [0.04]], dtype=torch.double))
    assert len(data["sunday"]) == 2


def test_runs_outside_the_new_bounds_are_kept():
    outside = RUNS.assign(rate=[1e-6, 10.0, 1e-2])
    data = encoded_runs(mixed_space(), outside)
    assert data["monday"][0][:, 0].tolist() == [-6.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": ["d", "e", "d"]}, "No run is left, because each run has a value"),
        ({"depth": ["deep", 2, 3]}, "'depth' is 'deep' in row 0, not a number"),
        ({"loss_sem": [0.1, -0.2, 0.1]}, "'loss_sem' has -0.2 in row 1, which is no"),
    ],
)
def test_values_that_the_space_does_not_have_are_refused(changes, message):
    with pytest.raises(UserInputError, match=message):
        encoded_runs(mixed_space(), RUNS.assign(**changes))


def test_encoded_as_the_target_is(make_client, runs):
    """What the adapter hands to a model of a new trial is what it makes of the same old run."""
    client = make_client(history=runs)
    row = runs.iloc[3]
    trial = client.attach_trial({"C": row["C"], "gamma": row["gamma"]})
    client.complete_trial(trial, {"loss": row["loss"]})
    client.get_next_trials(1)
    adapter = client._generation_strategy.adapter
    (dataset,) = adapter.generator.surrogate.training_data
    X, Y = dataset.sources["monday"]
    torch.testing.assert_close(dataset.X[0], X[3], rtol=0, atol=1e-12)
    torch.testing.assert_close(dataset.Y[0], Y[3], rtol=0, atol=1e-12)
    assert len(plain_space()) == X.shape[-1]


def test_runs_without_a_finite_value_are_left_out_and_counted(caplog):
    runs = RUNS.assign(loss=[1.0, np.inf, None], cost=[np.nan, 2.0, 3.0], kind=["a", None, "b"])
    with caplog.at_level(logging.INFO):
        data = encoded_runs(mixed_space(), runs)
    assert {name: len(task[0]) for name, task in data.items()} == {"monday": 1}
    assert "Left out 2 old runs without a finite loss." in caplog.messages
    data = encoded_runs(mixed_space(), runs, "cost", missing={"kind": "c"})
    assert {n: t[1].tolist() for n, t in data.items()} == {"monday": [[2.0]], "sunday": [[3.0]]}


def encoded_tensors(metric, names, missing=None):
    X, Y = torch.rand(3, 2, dtype=torch.double), torch.rand(3, 1, dtype=torch.double)
    tensors = {"loss": {"monday": (X, Y, Y.square())}, "cost": {"sunday": (X, -Y)}}
    history = TransferHistory.from_tensors(tensors, missing)
    space = [RangeParameterConfig(name, (0.0, 1.0), parameter_type="float") for name in names]
    return X, Y, encoded(space, history, metric, kinds=[Cast])


def test_columns_of_tensors_are_in_the_order_of_the_parameters():
    X, Y, found = encoded_tensors("loss", "ab")
    assert list(found) == ["monday"]
    torch.testing.assert_close(found["monday"][0], X, rtol=0, atol=0)
    torch.testing.assert_close(found["monday"][2], Y.square())
    X, Y, found = encoded_tensors("cost", "ab")
    assert list(found) == ["sunday"]
    assert torch.equal(found["sunday"][1], -Y)
    with pytest.raises(UserInputError, match=r"X of task 'sunday' has 2 columns, .* has 1 param"):
        encoded_tensors("cost", "a")
    with pytest.raises(UserInputError, match=r"2 columns, .* has 3 .*values of \['c'\] by missing"):
        encoded_tensors("cost", "abc")
    X, Y, found = encoded_tensors("cost", "abc", missing={"c": 0.25})
    assert torch.equal(found["sunday"][0], torch.cat([X, torch.full_like(Y, 0.25)], dim=-1))


def test_parameters_may_have_any_name():
    names = ["task", "mean", "sem"]
    space = [RangeParameterConfig(name, (0.0, 9.0), parameter_type="float") for name in names]
    frame = pd.DataFrame({"old": ["x", "y"], "task": [1.0, 2.0], "mean": [3.0, 4.0], "sem": 5.0})
    data = encoded_runs(space, frame.assign(loss=[0.1, 0.2]), task="old")
    inputs = {name: task[0].tolist() for name, task in data.items()}
    assert inputs == {"x": [[1.0, 3.0, 5.0]], "y": [[2.0, 4.0, 5.0]]}
    assert data["x"][1].tolist() == [[0.1]]
    with pytest.raises(UserInputError, match="no values of parameter 'task'"):
        encoded_runs(space, frame.assign(loss=1.0))


def test_derived_parameters_need_no_column():
    """Ax makes no input of them, and computes them itself."""
    plain = encoded_runs(corner_space(), bowls())
    for table in (bowls(), bowls().assign(total=7.0)):
        data = encoded_runs(derived_space(), table)
        assert torch.equal(data["x"][0], plain["x"][0])


DEPENDENT = pd.DataFrame(
    {"task": "x", "kind": ["p", "q"], "a": [0.1, None], "b": [None, 0.3], "loss": [1.0, 2.0]}
)


@pytest.mark.parametrize("kinds", ["pq", "pqr"])
def test_what_does_not_matter_is_where_ax_puts_it(make_client, kinds):
    """Whatever the table says of it."""
    data = encoded_runs(dependent_space(kinds), DEPENDENT)
    X = data["x"][0]
    assert X[:, -2:].tolist() == [[0.1, 0.5], [0.5, 0.3]]
    told = DEPENDENT.assign(a=[0.1, -9.0], b=[7.0, 0.3])
    again = encoded_runs(dependent_space(kinds), told)
    assert torch.equal(again["x"][0], X)
    client = make_client(dependent_space(kinds), history=DEPENDENT)
    client.complete_trial(client.attach_trial({"kind": "p", "a": 0.1}), {"loss": 1.0})
    client.get_next_trials(1)
    (dataset,) = client._generation_strategy.adapter.generator.surrogate.training_data
    torch.testing.assert_close(dataset.X.cpu(), X[:1])
    torch.testing.assert_close(dataset.sources["x"][0].cpu(), X)


def test_what_matters_is_not_missing():
    runs = DEPENDENT.assign(a=[None, 0.1])
    message = "Task 'x': Parameter 'a' has no value in row 0, but the parameter is active: give "
    message += r"its value by missing={'a': \.\.\.}, or make it one of the dependent_parameters\."
    with pytest.raises(UserInputError, match=message):
        encoded_runs(dependent_space(), runs)
    data = encoded_runs(dependent_space(), runs, missing={"a": 0.8})
    assert data["x"][0][0].tolist()[-2:] == [0.8, 0.5]


def test_spaces_that_differ_in_what_depends_are_not_mixed_up():
    runs = DEPENDENT.assign(a=[0.1, 0.2], b=[0.4, 0.3])
    kind, *rest = dependent_space()
    flat = [replace(kind, dependent_parameters=None), *rest]
    for space, expected in ((dependent_space(), 0.5), (flat, 0.4)):
        data = encoded_runs(space, runs)
        assert data["x"][0][0, -1] == expected


def encode_choice(values, choices, kind, **options):
    space = [ChoiceParameterConfig("p", choices, parameter_type=kind, **options)]
    runs = pd.DataFrame({"task": "old", "p": values, "loss": range(len(values))})
    data = encoded_runs([*space, *plain_space()], runs.assign(C=1.0, gamma=1.0))
    return data["old"][0]


@pytest.mark.parametrize(
    ("changes", "cell"),
    [({"kind": ["a", "d", "c"]}, "'kind' is 'd'"), ({"rate": [1.0, 0.0, 1.0]}, "'rate' is 0.0")],
)
def test_runs_that_the_space_has_no_place_for_are_counted(changes, cell, caplog):
    with caplog.at_level(logging.WARNING, logger="botorch_transfer"):
        data = encoded_runs(mixed_space(), RUNS.assign(**changes))
    assert caplog.messages == [
        "Each old task has only one value of 'loss', so old runs do not help",
        f"1 runs are left out, because each has a value that the search space lacks: {cell} (1) "
        "(task 'monday' (1), from row 1 on)",
    ]
    assert sum(len(task[0]) for task in data.values()) == 2
    assert sorted(float(y) for task in data.values() for y in task[1]) == [1.0, 3.0]


@pytest.mark.parametrize(
    ("values", "choices", "kind"),
    [
        ([1, 2.7], [1, 2, 3], "int"),
        ([True, "yes"], [True, False], "bool"),
        ([1.0, 2.1], [1.0, 2.0, 3.0], "float"),
    ],
)
def test_no_value_is_taken_for_another_choice(values, choices, kind, caplog):
    with caplog.at_level(logging.WARNING, logger="botorch_transfer"):
        X = encode_choice(values, choices, kind, is_ordered=False)
    assert len(X) == 1
    told = "1 runs are left out, because each has a value that the search space lacks"
    assert told in caplog.text


def test_rounded_numbers_are_the_choices_that_they_were():
    steps = [0.0, 0.1, 0.2, 0.1 + 0.2, 0.4]
    rounded = [0.3, float(np.float32(0.1)), 0.4]
    assert encode_choice(rounded, steps, "float")[:, 0].tolist() == [steps[3], 0.1, 0.4]


@pytest.mark.parametrize(
    ("parameter", "values", "scale"),
    [
        (
            RangeParameterConfig("p", (0.0, 10.0), "float", step_size=5.0),
            [-0.01, 0.01, 5.0, 10.01],
            float,
        ),
        (RangeParameterConfig("p", (0, 10), "int", step_size=5), [-0.01, 0.01, 5, 10.01], float),
        (ChoiceParameterConfig("p", [1, 10, 100], "int", True), [0.5, 2.5, 10, 300], math.log10),
        (ChoiceParameterConfig("p", [0.1, 0.7], "float"), [0.0, 0.1, 0.4, 0.9], float),
        (RangeParameterConfig("p", (1, 9), "int"), [0.4, 2.5, 3, 11.5], float),
        (RangeParameterConfig("p", (1, 9), "int", scaling="log"), [0.4, 2.5, 3, 12], math.log10),
    ],
)
def test_numbers_off_the_levels_keep_their_place(parameter, values, scale):
    """Levels and integers are where Ax puts them, and other numbers are between them."""
    runs = pd.DataFrame({"task": "old", "p": values, "loss": range(4)})
    data = encoded_runs([parameter, *plain_space()], runs.assign(C=1.0, gamma=1.0))
    expected = [scale(value) for value in values]
    assert data["old"][0][:, 0].tolist() == pytest.approx(expected, abs=1e-12)


def test_numbers_off_the_levels_switch_on_what_the_nearest_level_does():
    dependents = {1: ["a"], 2: ["b"]}
    parent = ChoiceParameterConfig("n", [1, 2], "int", dependent_parameters=dependents)
    steps = [RangeParameterConfig(name, (0, 8), "int", step_size=4) for name in "ab"]
    runs = pd.DataFrame({"task": "x", "n": [1.1, 1.9, 2], "a": [0.5, 3.0, None]})
    data = encoded_runs([parent, *steps], runs.assign(b=[None, 7.5, 8], loss=[1.0, 2.0, 3.0]))
    assert data["x"][0].tolist() == [[1.1, 0.5, 4.0], [1.9, 4.0, 7.5], [2.0, 4.0, 8.0]]


def test_old_runs_with_another_value_of_what_is_fixed_are_left_out(caplog):
    assert encode_choice(["adam", "sgd"], ["adam"], "str").shape == (1, 2)
    assert "a value that the search space lacks: 'p' is 'sgd' (1)" in caplog.text
    assert encode_choice(["adam", None], ["adam"], "str").shape == (2, 2)


def test_unknown_values_are_spread_over_the_range():
    space = [
        RangeParameterConfig("C", (0.1, 1000.0), parameter_type="float", scaling="log"),
        RangeParameterConfig("wd", (1e-6, 0.1), parameter_type="float", scaling="log"),
        RangeParameterConfig("depth", (1, 4), parameter_type="int"),
        ChoiceParameterConfig("kind", ["a", "b"], parameter_type="str", is_ordered=False),
    ]
    runs = pd.DataFrame({"task": ["x", "y"] * 8, "C": 10.0 ** np.linspace(-1, 3, 16)})
    runs["loss"] = runs["C"]
    with pytest.raises(UserInputError, match="Task 'x' has no values of parameter 'wd'"):
        encoded_runs(space, runs)
    unknown = dict.fromkeys(["wd", "depth", "kind"])
    data = encoded_runs(space, runs, missing=unknown)
    for X, _ in data.values():
        wd = ((X[:, 1] + 6.0) / 5.0).sort().values
        assert wd.diff().max() < 2 / 8
        assert wd[0] < 1 / 8 < 7 / 8 < wd[-1]
        assert X[:, 2].unique().tolist() == [1.0, 2.0, 3.0, 4.0]
        assert len(X[:, 3:].unique(dim=0)) == 2
    again = encoded_runs(space, runs, missing=unknown)
    assert torch.equal(again["x"][0], data["x"][0])
    known = encoded_runs(space, runs, missing={**unknown, "wd": 1e-3})
    assert len(known["x"][0][:, 1].unique()) == 1
