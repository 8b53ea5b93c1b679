from __future__ import annotations

import pytest
from ax.core.arm import Arm
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.exceptions.core import UserInputError

from botorch_transfer.ax._internals import experiment_of
from botorch_transfer.ax.optimization import (
    awaited_arms,
    directions,
    failed_arms,
    metrics_of,
    refuse_other_metrics,
    without_abandoned,
)


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
