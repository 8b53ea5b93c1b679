"""What Ax is told of this package."""

import json

import torch
from ax.adapter.registry import GENERATOR_KEY_TO_GENERATOR_SETUP
from ax.core.search_space import SearchSpaceDigest
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular import surrogate
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.surrogate import Surrogate
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import CLASS_TO_REVERSE_REGISTRY
from ax.storage.json_store.decoder import object_from_json
from ax.storage.json_store.encoder import object_to_json
from ax.storage.transform_registry import TRANSFORM_REGISTRY
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import Normalize
from gpytorch.kernels import RBFKernel

from botorch_transfer import ScaMLGP, models
from botorch_transfer.ax import TransferGenerators, adapter, strategy
from botorch_transfer.ax.acquisition import TransferAcquisition
from botorch_transfer.ax.adapter import StandardizeByHistory, TransferDataset
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.model import TransferModel
from tests.ax.signatures import parameters


def test_ax_is_as_it_is_used():
    taken = ["model_config", "dataset", "search_space_digest", "botorch_model_class"]
    assert parameters(surrogate._construct_submodules) == taken
    ours, theirs = adapter.transfer_inputs_for_ax, surrogate.submodel_input_constructor
    default = theirs.dispatch(SingleTaskGP)
    assert parameters(ours) == parameters(default)


def test_models_are_known_to_storage():
    for name in models.__all__:
        cls = getattr(models, name)
        assert CLASS_TO_REVERSE_REGISTRY[Model][name] is cls
        config = ModelConfig(botorch_model_class=cls, model_options={"a": 1})
        stored = json.loads(json.dumps(object_to_json(config)))
        assert object_from_json(stored).botorch_model_class is cls


def test_generators_and_histories_are_known_to_storage():
    history = TransferHistory({"old task": ["monday"], "C": [0.1], "loss": [1 / 3]})
    spec = GeneratorSpec(TransferGenerators.TRANSFER, {"history": history})
    again = object_from_json(json.loads(json.dumps(object_to_json(spec))))
    assert again.generator_enum is TransferGenerators.TRANSFER
    assert again.generator_kwargs["history"] == history


def test_acquisition_and_transform_are_known_to_storage():
    assert CLASS_TO_REVERSE_REGISTRY[Acquisition]["TransferAcquisition"] is TransferAcquisition
    assert StandardizeByHistory in TRANSFORM_REGISTRY


def test_inputs_of_transfer_models_are_made_here():
    dispatch = surrogate.submodel_input_constructor.dispatch
    for name in models.__all__:
        cls = getattr(models, name)
        if issubclass(cls, TransferModel):
            assert dispatch(cls) is adapter.transfer_inputs_for_ax
    assert dispatch(SingleTaskGP) is not adapter.transfer_inputs_for_ax


def test_the_users_kernel_is_constructed_and_inputs_are_scaled_by_us():
    """Ax's own Normalize knows nothing of where source tasks were evaluated."""
    X = torch.rand(4, 2, dtype=torch.double)
    names = {"feature_names": ["a", "b"], "outcome_names": ["loss"]}
    sources = {"monday": (torch.cat([X, X.new_full((1, 2), 3.0)]), torch.rand(5, 1).to(X))}
    dataset = TransferDataset(X, X[:, 1:], **names)
    dataset.sources = sources
    config = ModelConfig(
        botorch_model_class=ScaMLGP,
        input_transform_classes=[Normalize],
        covar_module_class=RBFKernel,
        covar_module_options={"ard_num_dims": 2},
    )
    space = SearchSpaceDigest(feature_names=["a", "b"], bounds=[(0.0, 1.0)] * 2)
    inputs = adapter.transfer_inputs_for_ax(ScaMLGP, config, dataset, space, Surrogate())
    assert inputs["input_transform"].bounds.tolist() == [[0.0, 0.0], [3.0, 3.0]]
    model = ScaMLGP(**inputs)
    assert isinstance(model.residual_covar_module, RBFKernel)


def test_registration_may_be_repeated():
    before = len(GENERATOR_KEY_TO_GENERATOR_SETUP)
    strategy.register()
    assert len(GENERATOR_KEY_TO_GENERATOR_SETUP) == before
