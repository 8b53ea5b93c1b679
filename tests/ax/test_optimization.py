from __future__ import annotations

import pytest
from ax.exceptions.core import UserInputError

from botorch_transfer.ax._internals import experiment_of
from botorch_transfer.ax.optimization import (
    directions,
    failed_arms,
    refuse_other_metrics,
    restricted_to,
)


def config_of(client):
    return experiment_of(client).optimization_config


def test_directions(make_client):
    config = config_of(make_client(objective="-loss, score"))
    assert directions(config) == {"loss": -1.0, "score": 1.0}
    assert directions(None) == {}


def test_constraints_on_unknown_metrics_are_left_out(make_client):
    config = config_of(make_client(constraints=["cost <= 3", "time <= 4"]))
    kept = restricted_to(config, ["loss", "cost"])
    assert [c.metric_signatures for c in kept.outcome_constraints] == [["cost"]]
    assert len(config.outcome_constraints) == 2


def test_one_of_two_objectives_may_be_unknown(make_client):
    config = config_of(make_client(objective="-loss, score"))
    kept = restricted_to(config, ["loss"])
    assert directions(kept) == {"loss": -1.0}
    assert kept.objective.is_single_objective
    assert restricted_to(config, ["loss", "score"]).objective == config.objective


@pytest.mark.parametrize("objective", ["-loss", "-2*loss - cost"])
def test_nothing_known_of_the_objective_is_refused(make_client, objective):
    with pytest.raises(UserInputError, match="nothing of the objective"):
        restricted_to(config_of(make_client(objective=objective)), ["cost"])


def test_metrics_of_other_names_are_refused():
    refuse_other_metrics(["loss", "old name"], ["loss", "cost"])
    with pytest.raises(UserInputError, match=r"metrics \['loss'\], .* speaks of \['Loss'\]"):
        refuse_other_metrics(["Loss"], ["loss"])


def test_failed_arms(make_client):
    client = make_client()
    first = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.attach_trial({"C": 2.0, "gamma": 1.0})
    client.mark_trial_failed(first)
    assert [arm.parameters["C"] for arm in failed_arms(experiment_of(client))] == [1.0]
