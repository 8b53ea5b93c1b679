from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from ax.api.configs import ChoiceParameterConfig
from ax.exceptions.core import UserInputError

from botorch_transfer.ax import encode_history
from tests.ax.conftest import mixed_space, plain_space

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
    data, transform, discrete = encode_history(mixed_space(), RUNS, "loss", goal="min")
    X, Y, Yvar = data["monday"]
    assert X[:, :2].tolist() == [[-4.0, 1.0], [0.0, 5.0]]
    assert X[:, 2:].sum(dim=-1).tolist() == [1.0, 1.0]
    assert not torch.equal(X[0, 2:], X[1, 2:])
    assert Y.tolist() == [[-1.0], [-2.0]]
    torch.testing.assert_close(Yvar, torch.tensor([[0.01], [0.04]], dtype=torch.double))
    assert len(data["sunday"]) == 2
    unit = transform(X)
    assert unit.min() == 0.0
    assert unit.max() == 1.0
    assert discrete == (1,)


def test_runs_outside_the_new_bounds_are_kept():
    outside = RUNS.assign(rate=[1e-6, 10.0, 1e-2])
    data, transform, _ = encode_history(mixed_space(), outside, "loss")
    assert transform.bounds[:, 0].tolist() == [-6.0, 1.0]
    assert data["monday"][0][:, 0].tolist() == [-6.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": ["a", "b", "d"]}, "kind='d', which is none of"),
        ({"rate": [0.0, 1.0, 1.0]}, "rate=0.0, which is no value"),
        ({"depth": [1.5, 2, 3]}, "depth=1.5, which is no value"),
        ({"loss_sem": [0.1, np.nan, 0.1]}, "for some runs only"),
    ],
)
def test_values_that_the_space_does_not_have_are_refused(changes, message):
    with pytest.raises(UserInputError, match=message):
        encode_history(mixed_space(), RUNS.assign(**changes), "loss")


def test_encoded_as_the_target_is(make_client, runs):
    """What the adapter hands to a model of a new trial is what it makes of the same old run."""
    client = make_client(history=runs)
    row = runs.iloc[3]
    trial = client.attach_trial({"C": row["C"], "gamma": row["gamma"]})
    client.complete_trial(trial, {"loss": row["loss"]})
    client.get_next_trials(1)
    adapter = client._generation_strategy.adapter
    (dataset,) = adapter.generator.surrogate.training_data
    X, Y = dataset.transferred.sources["monday"]
    torch.testing.assert_close(dataset.X[0], X[3], rtol=0, atol=1e-12)
    torch.testing.assert_close(dataset.Y[0], Y[3], rtol=0, atol=1e-12)
    assert len(plain_space()) == X.shape[-1]


def encode_choice(values, choices, kind, **options):
    space = [ChoiceParameterConfig("p", choices, parameter_type=kind, **options)]
    runs = pd.DataFrame({"task": "old", "p": values, "loss": range(len(values))})
    data, _, _ = encode_history([*space, *plain_space()], runs.assign(C=1.0, gamma=1.0), "loss")
    return data["old"][0]


@pytest.mark.parametrize(
    ("values", "choices", "kind"),
    [
        ([1, 2.7], [1, 2, 3], "int"),
        (["no", "yes"], [True, False], "bool"),
        ([1.0, 2.1], [1.0, 2.0], "float"),
    ],
)
def test_no_value_is_taken_for_another_choice(values, choices, kind):
    with pytest.raises(UserInputError, match="which is none of"):
        encode_choice(values, choices, kind)


def test_rounded_numbers_are_the_choices_that_they_were():
    steps = [0.0, 0.1, 0.2, 0.1 + 0.2, 0.4]
    rounded = [0.3, float(np.float32(0.1)), 0.4]
    assert encode_choice(rounded, steps, "float")[:, 0].tolist() == [steps[3], 0.1, 0.4]


def test_old_runs_with_another_value_of_what_is_fixed_are_refused():
    with pytest.raises(UserInputError, match="p='sgd', and the experiment's is fixed to 'adam'"):
        encode_choice(["adam", "sgd"], ["adam"], "str")
    assert encode_choice(["adam", "adam"], ["adam"], "str").shape == (2, 2)
