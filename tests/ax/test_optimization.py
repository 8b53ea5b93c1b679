from __future__ import annotations

import pytest
from ax.core.arm import Arm
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.core.parameter import ParameterType, RangeParameter
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.experiments import (
    awaited_arms,
    directions,
    experiment_of,
    failed_arms,
    metrics_of,
    refuse_other_metrics,
    without_abandoned,
)
from tests.ax.conftest import dependent_space, derived_space


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
    assert metrics_of(experiment_of(client)) == ["cost", "loss", "score"]


def test_metrics_of_other_names_are_refused():
    refuse_other_metrics(["loss", "old name"], ["loss", "cost"])
    with pytest.raises(UserInputError, match=r"metrics \['loss'\], .* speaks of \['Loss'\]"):
        refuse_other_metrics(["Loss"], ["loss"])


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
    assert parameters_of(failed_arms(experiment_of(client))) == [1.0, 3.0, 5.0]
    assert parameters_of(awaited_arms(experiment_of(client))) == [2.0]
    space = experiment_of(client).search_space
    space.parameters["C"].update_range(upper=4.5)
    assert parameters_of(failed_arms(experiment_of(client))) == [1.0, 3.0]


def test_arms_may_lack_what_ax_fills_in(make_client):
    """They hold no parameters that do not matter, and derived ones are no choice of theirs."""
    client = make_client(derived_space())
    client.mark_trial_failed(client.attach_trial({"a": 0.1, "b": 0.2, "total": 0.1 + 0.2}))
    assert len(failed_arms(experiment_of(client))) == 1
    client = make_client(dependent_space())
    client.mark_trial_failed(client.attach_trial({"kind": "p", "a": 0.1}))
    client.attach_trial({"kind": "q", "b": 0.4})
    experiment = experiment_of(client)
    assert [arm.parameters["kind"] for arm in failed_arms(experiment)] == ["p"]
    assert [arm.parameters["kind"] for arm in awaited_arms(experiment)] == ["q"]


def test_arms_from_before_a_parameter_came(make_client):
    client = make_client()
    client.attach_trial({"C": 1.0, "gamma": 1.0})
    experiment = experiment_of(client)
    shrink = RangeParameter("shrink", ParameterType.FLOAT, 0.0, 1.0)
    experiment.search_space.add_parameter(shrink)
    assert awaited_arms(experiment) == []
    shrink._backfill_value = 0.5
    assert len(awaited_arms(experiment)) == 1


def test_what_failed_and_then_succeeded_did_not_fail(make_client):
    client = make_client()
    for mark in ("mark_trial_failed", None):
        trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
        if mark:
            getattr(client, mark)(trial)
    assert len(failed_arms(experiment_of(client))) == 1
    client.complete_trial(trial, {"loss": 1.0})
    assert failed_arms(experiment_of(client)) == []


def test_abandoned_trials_are_not_pending(make_client):
    client = make_client()
    trials = [client.attach_trial({"C": C, "gamma": 1.0}) for C in (1.0, 2.0)]
    client.mark_trial_abandoned(trials[0])
    features = [ObservationFeatures({"C": C}, trial_index=t) for t, C in enumerate((1.0, 2.0))]
    experiment = experiment_of(client)
    kept = without_abandoned(experiment, {"loss": features, "cost": features[:1]})
    assert kept == {"loss": features[1:]}
    assert without_abandoned(experiment, None) == {}


def test_abandoned_arms_of_a_batch_are_neither_awaited_nor_done(make_client):
    client = make_client()
    arms = [Arm({"C": C, "gamma": 1.0}, name=name) for C, name in ((1.0, "x"), (2.0, "y"))]
    experiment = experiment_of(client)
    batch = experiment.new_batch_trial(generator_run=GeneratorRun(arms))
    batch.mark_running(no_runner_required=True)
    batch.mark_arm_abandoned("x")
    features = [ObservationFeatures(arm.parameters, trial_index=batch.index) for arm in arms]
    assert without_abandoned(experiment, {"loss": features}) == {"loss": features[1:]}
    for mark in (lambda: None, batch.mark_completed):
        mark()
        assert parameters_of(failed_arms(experiment)) == [1.0]
    assert awaited_arms(experiment) == []
