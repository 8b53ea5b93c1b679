"""The parts of Ax that are not its public interface are still as this package needs them."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest
from ax.adapter.base import Adapter
from ax.adapter.registry import GENERATOR_KEY_TO_GENERATOR_SETUP
from ax.adapter.torch import TorchAdapter
from ax.adapter.transfer_learning.adapter import TransferLearningAdapter
from ax.api.client import Client
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular import surrogate
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import CLASS_TO_REVERSE_REGISTRY
from ax.storage.json_store.decoder import object_from_json
from ax.storage.json_store.encoder import object_to_json
from botorch.models import SingleTaskGP
from botorch.models.model import Model

from botorch_transfer import models
from botorch_transfer.ax import TransferGenerators, _internals
from botorch_transfer.ax.auxiliary import AuxiliaryHistory
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.models.target import TargetGP


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (TorchAdapter._fit, ["self", "search_space", "experiment_data", "kwargs"]),
        (TransferLearningAdapter._fit, ["self", "search_space", "experiment_data", "kwargs"]),
        (
            TorchAdapter._convert_experiment_data,
            ["self", "experiment_data", "outcomes", "parameters", "search_space_digest"],
        ),
        (
            Adapter._set_kwargs_to_save,
            ["self", "generator_key", "generator_kwargs", "adapter_kwargs"],
        ),
        (Acquisition._instantiate_acquisition, ["self"]),
        (
            surrogate._construct_submodules,
            ["model_config", "dataset", "search_space_digest", "botorch_model_class"],
        ),
    ],
)
def test_overridden_functions_have_the_signatures_that_they_are_overridden_with(function, expected):
    assert parameters(function) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "further"),
    [
        (_internals.TransferAdapter, TorchAdapter, {"history", "priors", "pretraining"}),
        (
            _internals.AuxiliaryTransferAdapter,
            TransferLearningAdapter,
            {"history"},
        ),
    ],
)
def test_adapters_take_all_that_ax_has(ours, theirs, further):
    assert set(parameters(ours)) == set(parameters(theirs)) | further
    assert parameters(ours.gen) == parameters(theirs.gen)


def test_attributes_of_ax_that_are_read_or_set():
    assert {"_experiment", "_optimization_config", "transforms", "generator"} <= set(
        vars(TorchAdapter(**_unfitted()))
    )
    assert "_surrogate" in vars(BoTorchGenerator())
    assert "metric_to_model_configs" in {field.name for field in fields(SurrogateSpec)}
    assert hasattr(Client, "_experiment")
    assert hasattr(Client, "_save_experiment_to_db_if_possible")


def _unfitted():
    client = Client()
    client.configure_experiment([])
    return {
        "experiment": client._experiment,
        "generator": BoTorchGenerator(),
        "fit_on_init": False,
    }


def test_models_are_known_to_storage():
    for name in models.__all__:
        cls = getattr(models, name)
        assert CLASS_TO_REVERSE_REGISTRY[Model][name] is cls
        config = ModelConfig(botorch_model_class=cls, model_options={"a": 1})
        stored = json.loads(json.dumps(object_to_json(config)))
        assert object_from_json(stored).botorch_model_class is cls


def test_generators_and_histories_are_known_to_storage():
    history = TransferHistory({"task": ["monday"], "C": [0.1], "loss": [1 / 3]})
    spec = GeneratorSpec(TransferGenerators.TRANSFER, {"history": history})
    again = object_from_json(json.loads(json.dumps(object_to_json(spec))))
    assert again.generator_enum is TransferGenerators.TRANSFER
    assert again.generator_kwargs["history"] == history
    names = object_from_json(object_to_json(AuxiliaryHistory(["a", "b"])))
    assert (names.names, names.sources) == (["a", "b"], None)
    for generator in TransferGenerators:
        assert generator.value in GENERATOR_KEY_TO_GENERATOR_SETUP


def test_inputs_of_transfer_models_are_made_here():
    dispatch = surrogate.submodel_input_constructor.dispatch
    for name in models.__all__:
        cls = getattr(models, name)
        if issubclass(cls, TargetGP):
            assert dispatch(cls) is _internals.transfer_inputs_for_ax
    assert dispatch(SingleTaskGP) is not _internals.transfer_inputs_for_ax


def test_with_a_trial_the_key_of_the_history_is_stored(make_client, complete, runs):
    client = make_client(history=runs)
    table = '"columns": {"task": ["monday"'
    before = json.dumps(client._to_json_snapshot()).count(table)
    complete(client, 2)
    stored = json.dumps(client._to_json_snapshot())
    assert stored.count(table) == before
    assert stored.count(f'"history": "{TransferHistory.from_frame(runs).key}"') >= 2


def test_registration_may_be_repeated():
    before = len(GENERATOR_KEY_TO_GENERATOR_SETUP)
    _internals.register()
    assert len(GENERATOR_KEY_TO_GENERATOR_SETUP) == before
