"""What Ax's clients keep to themselves."""

import pytest
from ax.core.arm import Arm
from ax.core.generator_run import GeneratorRun
from ax.core.objective import Objective
from ax.core.optimization_config import MultiObjectiveOptimizationConfig
from ax.core.parameter import ParameterType, RangeParameter
from ax.exceptions.core import UserInputError

from botorch_transfer.ax_experiments import (
    arms_by_fate,
    directions,
    experiment_of,
    goals_of,
    restricted_to,
)
from tests.ax.conftest import dependent_space, derived_space
from tests.ax.signatures import parameters


def config_of(client):
    return experiment_of(client).optimization_config


def test_directions(make_client):
    config = config_of(make_client(objective="-loss, score"))
    assert directions(config) == {"loss": -1.0, "score": 1.0}
    assert directions(None) == {}
    sums = config_of(make_client(objective="-2*loss + score"))
    assert directions(sums) == {"loss": -1.0, "score": 1.0}


def test_metrics_of_objectives_and_constraints(make_client):
    client = make_client(objective="-loss, score", constraints=["cost <= 3"])
    goals = goals_of(experiment_of(client))
    assert {name: goal.sign for name, goal in goals.items()} == {"cost": -1, "loss": -1, "score": 1}
    assert list(goals) == sorted(goals)


def parameters_of(arms):
    return sorted(arm.parameters["C"] for arm in arms)


def test_failed_and_awaited_arms(make_client):
    client = make_client()
    configs = [{"C": float(C), "gamma": 1.0} for C in (1, 2, 3, 4, 5, 1)]
    failed, _, abandoned, done, beyond, again = map(client.attach_trial, configs)
    client.mark_trial_failed(failed)
    client.mark_trial_abandoned(abandoned)
    client.complete_trial(done, {"loss": 1.0})
    client.mark_trial_failed(beyond)
    client.mark_trial_failed(again)
    assert parameters_of(arms_by_fate(experiment_of(client))["failed"]) == [1.0, 5.0]
    assert parameters_of(arms_by_fate(experiment_of(client))["abandoned"]) == [3.0]
    assert parameters_of(arms_by_fate(experiment_of(client))["succeeded"]) == [4.0]
    assert parameters_of(arms_by_fate(experiment_of(client))["pending"]) == [2.0]
    space = experiment_of(client).search_space
    space.parameters["C"].update_range(upper=4.5)
    assert parameters_of(arms_by_fate(experiment_of(client))["failed"]) == [1.0]
    assert parameters_of(arms_by_fate(experiment_of(client))["abandoned"]) == [3.0]


def test_an_arm_that_succeeded_elsewhere_has_neither_failed_nor_been_abandoned(make_client):
    client = make_client()
    for mark in (client.mark_trial_failed, client.mark_trial_abandoned):
        mark(client.attach_trial({"C": 1.0, "gamma": 1.0}))
    assert parameters_of(arms_by_fate(experiment_of(client))["abandoned"]) == [1.0]
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    assert parameters_of(arms_by_fate(experiment_of(client))["abandoned"]) == [1.0]
    client.complete_trial(trial, {"loss": 1.0})
    found = {fate: len(arms) for fate, arms in arms_by_fate(experiment_of(client)).items()}
    assert found == {"failed": 0, "abandoned": 0, "succeeded": 1, "pending": 0}


def test_arms_may_lack_what_ax_fills_in(make_client):
    """They hold no parameters that do not matter, and derived ones are no choice of theirs."""
    client = make_client(derived_space())
    client.mark_trial_failed(client.attach_trial({"a": 0.1, "b": 0.2, "total": 0.1 + 0.2}))
    assert len(arms_by_fate(experiment_of(client))["failed"]) == 1
    client = make_client(dependent_space())
    client.mark_trial_failed(client.attach_trial({"kind": "p", "a": 0.1}))
    client.attach_trial({"kind": "q", "b": 0.4})
    experiment = experiment_of(client)
    assert [arm.parameters["kind"] for arm in arms_by_fate(experiment)["failed"]] == ["p"]
    assert [arm.parameters["kind"] for arm in arms_by_fate(experiment)["pending"]] == ["q"]


def test_arms_from_before_a_parameter_came(make_client):
    client = make_client()
    client.attach_trial({"C": 1.0, "gamma": 1.0})
    experiment = experiment_of(client)
    shrink = RangeParameter("shrink", ParameterType.FLOAT, 0.0, 1.0)
    experiment.search_space.add_parameter(shrink)
    assert arms_by_fate(experiment)["pending"] == []
    shrink._backfill_value = 0.5
    assert len(arms_by_fate(experiment)["pending"]) == 1


def test_abandoned_arms_of_a_batch_are_neither_awaited_nor_done(make_client):
    client = make_client()
    arms = [Arm({"C": C, "gamma": 1.0}, name=name) for C, name in ((1.0, "x"), (2.0, "y"))]
    experiment = experiment_of(client)
    batch = experiment.new_batch_trial(generator_run=GeneratorRun(arms))
    batch.mark_running(no_runner_required=True)
    batch.mark_arm_abandoned("x")
    for mark in (lambda: None, batch.mark_completed):
        mark()
        assert parameters_of(arms_by_fate(experiment)["abandoned"]) == [1.0]
        assert arms_by_fate(experiment)["failed"] == []
    assert parameters_of(arms_by_fate(experiment)["succeeded"]) == [2.0]
    assert arms_by_fate(experiment)["pending"] == []


def test_axs_objectives_are_as_they_are_used(make_client):
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
        ("-loss", r"'-loss' needs the metrics \['loss'\], but .* only has the metrics \['cost'\]:"),
        ("-2*loss - cost", r"needs the metrics \['loss'\], but the history .*attach_trial"),
        ("-loss, score", r"needs the metrics \['loss', 'score'\]"),
    ],
)
def test_nothing_known_of_the_objective_is_refused(make_client, objective, message):
    with pytest.raises(UserInputError, match=message):
        restricted_to(config_of(make_client(objective=objective)), ["cost"])


def test_constraints_relative_to_a_status_quo_without_outcome_wait(make_client):
    config = config_of(make_client(constraints=["score <= 1.1*baseline", "cost <= 3"]))
    kept = restricted_to(config, ["loss", "cost", "score"])
    assert [constraint.relative for constraint in kept.outcome_constraints] == [False]


@pytest.mark.parametrize("names", [["loss", "score"], ["loss", "score", "time"]])
def test_thresholds_relative_to_a_status_quo_without_outcome_wait(make_client, names):
    constraints = ["loss <= 0.9*baseline", "score >= 0.2*baseline", "time <= 9"]
    config = config_of(make_client(objective="-loss, score, -time", constraints=constraints))
    kept = restricted_to(config, names)
    assert isinstance(kept, MultiObjectiveOptimizationConfig)
    assert [t.metric_signatures for t in kept.objective_thresholds] == [["time"]][: len(names) - 2]
    assert len(config.objective_thresholds) == 3
