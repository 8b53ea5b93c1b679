"""Old Ax experiments: renamed, missing and additional parameters, other bounds."""

from __future__ import annotations

import numpy as np
import pytest
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.experiment import Experiment
from ax.exceptions.core import UserInputError

from botorch_transfer.ax._internals import experiment_of
from botorch_transfer.ax.auxiliary import AuxiliaryHistory, auxiliary_names, auxiliary_outcomes
from tests.ax.conftest import plain_loss, plain_space

C, GAMMA = plain_space()
COST = RangeParameterConfig("cost", (1e-2, 1e3), parameter_type="float", scaling="log")
WIDE = RangeParameterConfig("C", (1e-4, 1e5), parameter_type="float", scaling="log")
SHRINK = RangeParameterConfig("shrink", (0.0, 1.0), parameter_type="float")


def old_experiment(space, metric="loss", baseline=None, name="old") -> Experiment:
    client, rng = Client(), np.random.default_rng(0)
    client.configure_experiment(space, name=name)
    client.configure_optimization(f"-{metric}")
    if baseline is not None:
        client.attach_baseline(baseline)
    for _ in range(9):
        config = {
            p.name: float(
                10 ** rng.uniform(*np.log10(p.bounds))
                if p.scaling == "log"
                else rng.uniform(*p.bounds)
            )
            for p in space
        }
        known = {"C": config.get("C", config.get("cost")), "gamma": config.get("gamma", 0.01)}
        loss = plain_loss(known, 0.0) + config.get("shrink", 0.0)
        client.complete_trial(client.attach_trial(config), {metric: loss})
    return experiment_of(client)


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
        (
            lambda: old_experiment(
                [C, GAMMA, SHRINK], baseline={"C": 1.0, "gamma": 1.0, "shrink": 0.25}
            ),
            None,
        ),
    ],
    ids=["renamed", "other bounds", "a parameter missing", "a parameter more"],
)
def test_what_ax_maps_is_kept(make_client, complete, old, baseline):
    client = make_client(history=[old()])
    if baseline is not None:
        client.attach_baseline(baseline)
    complete(client)
    ((_, config),) = client.get_next_trials(1).items()
    assert set(config) == {"C", "gamma"}
    adapter = client._generation_strategy.adapter
    assert adapter.generator.surrogate.model.prior.num_tasks == 1
    if "shrink" in adapter.parameters:
        x = adapter.generator.surrogate.training_data[0].X
        assert x[:, adapter.parameters.index("shrink")].tolist() == [0.25]


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


def test_outcomes_of_all_sources():
    sources = AuxiliaryHistory.from_experiments([old_experiment([C, GAMMA])]).sources
    assert len(auxiliary_outcomes(sources, "loss")) == 9
    assert auxiliary_outcomes(sources, "other") is None


def test_unfit_experiments_are_refused(make_client):
    with pytest.raises(UserInputError, match="'new' has no data"):
        AuxiliaryHistory.from_experiments([experiment_of(make_client())])
    old = old_experiment([C, GAMMA])
    with pytest.raises(UserInputError, match="different names"):
        AuxiliaryHistory.from_experiments([old, old])
