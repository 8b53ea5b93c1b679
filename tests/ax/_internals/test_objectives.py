"""What is optimized as long as only some of the metrics are known."""

from __future__ import annotations

import pytest
from ax.core.objective import Objective
from ax.core.optimization_config import MultiObjectiveOptimizationConfig
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.experiments import directions, experiment_of, restricted_to
from tests.ax.signatures import parameters


def config_of(client):
    return experiment_of(client).optimization_config


def test_ax_is_as_it_is_used(make_client):
    assert "_parsed" in parameters(Objective)
    names, parts = config_of(make_client(objective="-2*a, c")).objective._parsed
    assert (names, parts) == (["a", "c"], [[("a", -2.0)], [("c", 1.0)]])


def test_constraints_on_unknown_metrics_are_left_out(make_client):
    config = config_of(make_client(constraints=["cost <= 3", "time <= 4", "cost + time >= 1"]))
    kept = restricted_to(config, ["loss", "cost"])
    assert [c.metric_signatures for c in kept.outcome_constraints] == [["cost"]]
    assert kept.objective == config.objective
    assert len(config.outcome_constraints) == 3


def test_one_of_two_objectives_may_be_unknown(make_client):
    config = config_of(make_client(objective="-loss, score", constraints=["cost <= 3"]))
    kept = restricted_to(config, ["loss"])
    assert directions(kept) == {"loss": -1.0}
    assert kept.objective.is_single_objective
    assert kept.outcome_constraints == []
    assert restricted_to(config, ["loss", "score"]).objective == config.objective


def test_two_of_three_objectives_keep_their_thresholds(make_client):
    constraints = ["loss <= 4", "score >= 1", "time <= 9"]
    config = config_of(make_client(objective="-loss, score, -time", constraints=constraints))
    assert isinstance(config, MultiObjectiveOptimizationConfig)
    assert len(config.objective_thresholds) == 3
    kept = restricted_to(config, ["loss", "time"])
    assert isinstance(kept, MultiObjectiveOptimizationConfig)
    assert kept.objective.metric_weights == [("loss", -1.0), ("time", -1.0)]
    assert [t.metric_signatures for t in kept.objective_thresholds] == [["loss"], ["time"]]


def test_a_sum_stays_a_sum(make_client):
    config = config_of(make_client(objective="-2*loss - cost, score"))
    kept = restricted_to(config, ["loss", "cost"])
    assert kept.objective.is_scalarized_objective
    assert dict(kept.objective.metric_weights) == {"loss": -2.0, "cost": -1.0}
    other = restricted_to(config, ["loss", "score"])
    assert other.objective.metric_weights == [("score", 1.0)]


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("-loss", r"no \['loss'\] of the objective '-loss', only \['cost'\]"),
        ("-2*loss - cost", r"no \['loss'\] of the objective .*attach_trial"),
        ("-loss, score", r"no \['loss', 'score'\] of"),
    ],
)
def test_nothing_known_of_the_objective_is_refused(make_client, objective, message):
    with pytest.raises(UserInputError, match=message):
        restricted_to(config_of(make_client(objective=objective)), ["cost"])


def test_constraints_relative_to_a_status_quo_without_outcome_wait(make_client):
    config = config_of(make_client(constraints=["score <= 1.1*baseline", "cost <= 3"]))
    kept = restricted_to(config, ["loss", "cost", "score"])
    assert [constraint.relative for constraint in kept.outcome_constraints] == [False]


@pytest.mark.parametrize("metrics", [["loss", "score"], ["loss", "score", "time"]])
def test_thresholds_relative_to_a_status_quo_without_outcome_wait(make_client, metrics):
    constraints = ["loss <= 0.9*baseline", "score >= 0.2*baseline", "time <= 9"]
    config = config_of(make_client(objective="-loss, score, -time", constraints=constraints))
    kept = restricted_to(config, metrics)
    assert isinstance(kept, MultiObjectiveOptimizationConfig)
    assert [t.metric_signatures for t in kept.objective_thresholds] == [["time"]][
        : len(metrics) - 2
    ]
    assert len(config.objective_thresholds) == 3
