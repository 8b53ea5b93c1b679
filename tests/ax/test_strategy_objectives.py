"""What a generation strategy optimizes, and within which bounds, with history in each form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from botorch.models import SingleTaskGP

from botorch_transfer import ScaMLGP
from tests.ax.conftest import FORMS, bowl, bowls, corner_space, plain_loss, plain_space


def models_of(client: Any) -> list[type]:
    model = client._generation_strategy.adapter.generator.surrogate.model
    return [type(part) for part in getattr(model, "models", [model])]


def log_step(client: Any) -> tuple[float, float]:
    """Evaluates one suggestion in the plain space; its cost is what it is in the old runs."""
    ((trial, config),) = client.get_next_trials(1).items()
    C, gamma = np.log10([config["C"], config["gamma"]])
    client.complete_trial(trial, {"loss": plain_loss(config, 0.1), "cost": C + 2})
    return C, gamma


@pytest.mark.parametrize(
    ("form", "sign"), [("experiments", -1), ("table", 1), ("file", -1), ("file", 1)]
)
def test_a_sum_of_metrics(make_client, options_of, runs, form, sign):
    """Of the loss alone C = 10 ** 1.1 is best; its cost, or its worth, moves that by a decade."""
    goals = {"loss": "min", "cost": "min" if sign < 0 else "max"}
    client = make_client(
        objective=f"-loss {'-' if sign < 0 else '+'} 2*cost",
        **options_of(form, runs, plain_space(), goals),
    )
    for _ in range(2):
        C, gamma = log_step(client)
        assert C < 0.6 if sign < 0 else C > 1.9
        assert abs(gamma + 2.1) < 2.5
    assert models_of(client) == [ScaMLGP, ScaMLGP]


@pytest.mark.parametrize("form", FORMS)
def test_a_constraint_from_below(make_client, options_of, runs, form):
    """A metric that is only constrained is as it is in a prior's file."""
    client = make_client(
        constraints=["cost >= 4.5"],
        **options_of(form, runs, plain_space(), {"loss": "min", "cost": "max"}),
    )
    C, _ = log_step(client)
    assert C > 2.5
    C, _ = log_step(client)
    assert 2.4 < C < 2.8
    assert models_of(client) == [ScaMLGP, ScaMLGP]


@pytest.mark.parametrize("form", FORMS)
def test_a_constraint_on_parameters(make_client, options_of, form):
    """Most of the old runs violate it."""
    options = options_of(form, bowls(), corner_space())
    client = make_client(corner_space(), parameter_constraints=["a + b <= 0.6"], **options)
    for _ in range(2):
        ((trial, config),) = client.get_next_trials(1).items()
        assert config["a"] + config["b"] < 0.6 + 1e-6
        loss = bowl(config["a"], config["b"], 0.03)
        assert loss < 0.07  # the least is 0.045
        client.complete_trial(trial, {"loss": loss})


def test_constraints_with_and_without_history(make_client, runs):
    client = make_client(history=runs, constraints=["cost <= 2", "time <= 5"])
    ((trial, config),) = client.get_next_trials(1).items()
    assert np.log10(config["C"]) + 2 < 2.5  # the history knows what it costs
    outcome = {"loss": plain_loss(config, 0.1), "cost": np.log10(config["C"]) + 2, "time": 4.0}
    client.complete_trial(trial, outcome)
    client.get_next_trials(1)
    assert models_of(client) == [ScaMLGP, ScaMLGP, SingleTaskGP]


def test_two_objectives_one_of_them_without_history(make_client, runs):
    client = make_client(history=runs, objective="-loss, score")
    ((trial, config),) = client.get_next_trials(1).items()
    client.complete_trial(trial, {"loss": plain_loss(config, 0.1), "score": config["C"]})
    ((_, config),) = client.get_next_trials(1).items()
    assert set(config) == {"C", "gamma"}


@pytest.mark.parametrize("form", ["experiments", "table"])
def test_two_objectives_with_thresholds_relative_to_a_baseline(make_client, options_of, runs, form):
    """They wait for the baseline's outcome."""
    client = make_client(
        objective="-loss, -cost",
        constraints=["loss <= 0.9*baseline", "cost <= 1.1*baseline"],
        **options_of(form, runs, plain_space(), {"loss": "min", "cost": "min"}),
    )
    baseline = client.attach_baseline({"C": 1.0, "gamma": 1.0})
    client.get_next_trials(1)
    client.complete_trial(baseline, {"loss": 10.0, "cost": 2.0})
    ((_, config),) = client.get_next_trials(1).items()
    assert set(config) == {"C", "gamma"}


@pytest.mark.parametrize("form", FORMS)
def test_an_infinite_outcome_is_none(make_client, options_of, runs, form):
    client = make_client(
        constraints=["time <= 4"], **options_of(form, runs, plain_space(), {"loss": "min"})
    )
    for loss, time in ((np.inf, np.inf), (0.5, 2.0), (-np.inf, 3.0)):
        ((trial, _),) = client.get_next_trials(1).items()
        client.complete_trial(trial, {"loss": loss, "time": time})
    assert len(client.get_next_trials(1)) == 1


def test_maximizing_the_negated_history_is_minimizing(make_client, runs):
    negated = runs.assign(score=-runs["loss"]).drop(columns=["loss", "cost"])
    ((_, down),) = make_client(history=runs).get_next_trials(1).items()
    ((_, up),) = make_client(history=negated, objective="score").get_next_trials(1).items()
    np.testing.assert_allclose(np.log10(list(up.values())), np.log10(list(down.values())), atol=0.1)
