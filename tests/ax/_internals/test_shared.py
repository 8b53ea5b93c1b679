"""What both adapters share."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ax.adapter.base import Adapter
from ax.adapter.torch import TorchAdapter
from ax.api.client import Client
from ax.core.arm import Arm
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from botorch.models import SingleTaskGP

from botorch_transfer import ScaMLGP
from botorch_transfer.ax import TransferGenerators, encode_history
from botorch_transfer.ax.adapter import TransferMixin
from botorch_transfer.ax.auxiliary import AuxiliaryHistory
from botorch_transfer.ax.experiments import experiment_of
from botorch_transfer.ax.history import TransferHistory
from tests.ax.adapters import adapter_of
from tests.ax.conftest import bowls, corner_space, mixed_loss, mixed_space
from tests.ax.old_experiments import GAMMA, SHRINK, C, old_experiment
from tests.ax.signatures import parameters


def test_ax_is_as_it_is_overridden():
    taken = ["self", "generator_key", "generator_kwargs", "adapter_kwargs"]
    assert parameters(Adapter._set_kwargs_to_save) == taken
    client = Client()
    client.configure_experiment([])
    adapter = TorchAdapter(
        experiment=client._experiment, generator=BoTorchGenerator(), fit_on_init=False
    )
    read = {"_experiment", "_optimization_config", "transforms", "generator"}
    assert read <= set(vars(adapter))
    assert "_surrogate" in vars(BoTorchGenerator())
    assert "metric_to_model_configs" in {field.name for field in fields(SurrogateSpec)}


def test_moments_of_the_history_are_each_adapters_own():
    class Silent(TransferMixin):
        """Says nothing of its history."""

    with pytest.raises(TypeError, match=r"abstract method .*history_moments"):
        Silent()


def test_with_a_trial_the_key_of_the_history_is_stored(make_client, complete, runs):
    client = make_client(history=runs)
    table = '"columns": {"task": ["monday"'
    before = json.dumps(client._to_json_snapshot()).count(table)
    complete(client, 2)
    stored = json.dumps(client._to_json_snapshot())
    assert stored.count(table) == before
    assert stored.count(f'"history": "{TransferHistory.from_frame(runs).key}"') >= 2


@pytest.mark.parametrize("form", ["table", "experiments"])
def test_metrics_without_history_get_a_plain_model(make_client, runs, form):
    """The table knows cost, the experiments do not."""
    client = make_client(constraints=["cost <= 2", "time <= 5"])
    for C_, gamma in ((1.0, 0.1), (10.0, 0.01)):
        trial = client.attach_trial({"C": C_, "gamma": gamma})
        client.complete_trial(trial, {"loss": C_, "cost": gamma, "time": C_ + gamma})
    if form == "table":
        adapter = adapter_of(client, history=TransferHistory.from_frame(runs))
    else:
        old = AuxiliaryHistory.from_experiments([old_experiment([C, GAMMA])])
        adapter = adapter_of(client, TransferGenerators.AUXILIARY, history=old)
    models = dict(zip(adapter.outcomes, adapter.generator.surrogate.model.models, strict=True))
    without = ["time"] if form == "table" else ["cost", "time"]
    assert sorted(adapter.generator.surrogate_spec.metric_to_model_configs) == without
    expected = {name: SingleTaskGP if name in without else ScaMLGP for name in models}
    assert {name: type(model) for name, model in models.items()} == expected
    assert sorted(models) == ["cost", "loss", "time"]


def test_a_history_of_other_metrics_is_refused(make_client, runs):
    renamed = TransferHistory.from_frame(runs.rename(columns={"loss": "Loss"}).drop(columns="cost"))
    with pytest.raises(UserInputError, match="name them alike"):
        adapter_of(make_client(), history=renamed)


def test_before_any_outcome_only_what_has_history_is_looked_at(make_client, runs):
    client = make_client(objective="-loss, score", constraints=["time <= 5"])
    adapter = adapter_of(client, history=TransferHistory.from_frame(runs))
    assert adapter.outcomes == ["loss"]
    made = adapter.gen(1)
    assert made.optimization_config.objective.expression == "-1.0*loss"
    assert made.optimization_config.outcome_constraints == []


def avoided(client: Any) -> dict[str, list[list[float]]]:
    """What the last acquisition function was told to stay away from."""
    return client._generation_strategy.adapter.generator._acquisition.options


def encoded(configs: list[dict[str, Any]]) -> np.ndarray:
    """Rows in the model's space."""
    frame = pd.DataFrame(configs).assign(task="all", loss=0.0)
    X, _ = encode_history(mixed_space(), frame, "loss").source_data["all"]
    return X.numpy()


def test_what_failed_or_is_pending_is_avoided_in_the_models_space(make_client, mixed_runs):
    client = make_client(mixed_space(), history=mixed_runs)
    configs = [
        {"rate": 0.1, "depth": 1, "kind": "a"},
        {"rate": 0.01, "depth": 3, "kind": "c"},
        {"rate": 0.001, "depth": 5, "kind": "b"},
        {"rate": 0.02, "depth": 3, "kind": "b"},
    ]
    failed, abandoned, pending, done = (client.attach_trial(config) for config in configs)
    client.mark_trial_failed(failed)
    client.mark_trial_abandoned(abandoned)
    client.complete_trial(done, {"loss": mixed_loss(configs[-1])})
    ((_, config),) = client.get_next_trials(1, fixed_parameters={"depth": 2}).items()
    assert config["depth"] == 2
    np.testing.assert_allclose(avoided(client)["failed"], encoded(configs[:2]))
    np.testing.assert_allclose(avoided(client)["pending"], encoded(configs[2:3]))
    client.complete_trial(pending, {"loss": mixed_loss(configs[2])})
    client.get_next_trials(1)
    np.testing.assert_allclose(avoided(client)["pending"], encoded([dict(config)]))


def test_what_rounding_moved_out_of_a_constraint_is_pending(make_client):
    """Of such arms Ax says nothing."""
    client = make_client(corner_space(), parameter_constraints=["a + b <= 1"], history=bowls())
    trial = experiment_of(client).new_trial()
    trial.add_arm(Arm({"a": 0.5, "b": 0.500001}))
    trial.mark_running(no_runner_required=True)
    client.get_next_trials(1)
    assert avoided(client)["pending"] == [[0.5, 0.500001]]


def test_of_a_batch_what_is_suggested_already_is_pending(make_client, runs):
    client = make_client(history=runs)
    first, second, third = client.get_next_trials(3).values()
    expected = np.log10([[c["C"], c["gamma"]] for c in (first, second)])
    np.testing.assert_allclose(sorted(avoided(client)["pending"]), sorted(expected.tolist()))
    assert third not in (first, second)


def test_what_only_old_experiments_have_is_where_it_is_in_the_new_one(make_client):
    baseline = {"C": 1.0, "gamma": 1.0, "shrink": 0.25}
    client = make_client(history=[old_experiment([C, GAMMA, SHRINK], baseline=baseline)])
    client.mark_trial_failed(client.attach_trial({"C": 10.0, "gamma": 0.01}))
    client.get_next_trials(1)
    names = client._generation_strategy.adapter.generator.search_space_digest.feature_names
    (row,) = avoided(client)["failed"]
    known = dict(zip(names, row, strict=True))
    expected = {"C": 1.0, "gamma": -2.0, "shrink": 0.25}
    assert {name: known[name] for name in expected} == pytest.approx(expected)


def test_nothing_is_avoided_where_nothing_failed(make_client, complete, runs):
    client = make_client(history=runs)
    complete(client)
    client.get_next_trials(1)
    assert not avoided(client)
