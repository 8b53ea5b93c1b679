"""Old Ax experiments: renamed, missing and additional parameters, other bounds."""

from __future__ import annotations

import pytest
from ax.core.auxiliary_source import AuxiliarySource
from ax.exceptions.core import UserInputError

from botorch_transfer.ax import attach_history
from botorch_transfer.ax.experiments import experiment_of
from botorch_transfer.ax.history import AuxiliaryHistory, auxiliary_names
from tests.ax.conftest import plain_space
from tests.ax.old_experiments import COST, GAMMA, SHRINK, WIDE, C, old_experiment


@pytest.mark.parametrize(
    ("old", "baseline"),
    [
        (
            lambda: AuxiliarySource(
                old_experiment([COST, GAMMA], metric="old_loss"),
                transfer_param_config={"C": "cost"},
                transfer_metric_config={"loss": {"old_loss"}},
            ),
            None,
        ),
        (lambda: old_experiment([WIDE, GAMMA]), None),
        (lambda: old_experiment([C]), {"C": 1.0, "gamma": 0.01}),
    ],
    ids=["renamed", "other bounds", "a parameter missing"],
)
def test_what_ax_maps_is_kept(make_client, complete, old, baseline):
    client = make_client(history=[old()])
    if baseline is not None:
        client.attach_baseline(baseline)
    (config,) = complete(client)
    assert set(config) == {"C", "gamma"}
    adapter = client._generation_strategy.adapter
    assert adapter.generator.surrogate.model.prior.num_tasks == 1


@pytest.mark.parametrize(
    ("space", "name"), [([C], "gamma"), ([C, GAMMA, SHRINK], "shrink")], ids=["less", "more"]
)
def test_parameters_of_unknown_value_are_refused(make_client, complete, space, name):
    client = make_client(history=[old_experiment(space)])
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.complete_trial(trial, {"loss": 1.0})
    with pytest.raises(UserInputError, match=rf"\['{name}'\] are not in all"):
        complete(client)


def test_attached_once_and_in_order(make_client):
    experiment = experiment_of(make_client())
    history = AuxiliaryHistory.from_experiments(
        [old_experiment([C, GAMMA], name="a"), old_experiment([C, GAMMA], name="b")]
    )
    history.attach(experiment)
    history.attach(experiment)
    assert auxiliary_names(experiment) == ["a", "b"]
    AuxiliaryHistory(["a"]).attach(experiment)
    with pytest.raises(UserInputError, match=r"\['c'\] are not attached"):
        AuxiliaryHistory(["a", "c"]).attach(experiment)


def test_experiments_without_data_are_left_out_and_names_differ(make_client, caplog):
    old = old_experiment([C, GAMMA])
    assert AuxiliaryHistory.from_experiments([make_client(), old]).names == ["old"]
    assert "Old experiments without data are left out: new" in caplog.messages
    with pytest.raises(UserInputError, match="different names"):
        AuxiliaryHistory.from_experiments([old, old])


def test_clients_and_experiments_are_attached_in_order(make_client, old_clients, runs):
    old = old_clients(runs, plain_space())
    client = make_client()
    attach_history(client, old[:1])
    attach_history(experiment_of(client), [experiment_of(other) for other in old])
    assert set(auxiliary_names(experiment_of(client))) == {"monday", "tuesday", "sunday"}
