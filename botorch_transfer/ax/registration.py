"""Registers generators, models, the acquisition and what storage needs with Ax.

It uses what is private to Ax: ``_construct_submodules`` of its surrogate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ax.adapter import registry
from ax.adapter.torch import TorchAdapter
from ax.adapter.transforms.derelativize import Derelativize
from ax.adapter.transforms.metadata_to_task import MetadataToTask
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import (
    Surrogate,
    _construct_submodules,
    submodel_input_constructor,
)
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_acquisition, register_model
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
from ax.storage.transform_registry import register_transform
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer import models
from botorch_transfer.average import GuardRule
from botorch_transfer.ax.acquisition import TransferAcquisition
from botorch_transfer.ax.adapter import AuxiliaryTransferAdapter, TransferAdapter
from botorch_transfer.ax.history import AuxiliaryHistory, TransferHistory
from botorch_transfer.ax.model_inputs import transfer_model_inputs
from botorch_transfer.ax.units import StandardizeByHistory
from botorch_transfer.model import TransferModel


class TransferGenerators(registry.GeneratorRegistryBase):
    """The entries of this package in Ax's registry of generators."""

    TRANSFER = "botorch_transfer"
    AUXILIARY = "botorch_transfer_auxiliary"


@submodel_input_constructor.register(TransferModel)
def transfer_inputs_for_ax(
    botorch_model_class: type[TransferModel],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Constructs the arguments of a transfer model.

    Ax's own constructor of arguments drops the task column, which inputs have at prediction, and
    passes ``outcome_transform=None``, which would mean outcomes in the prior's units.
    """
    inputs = transfer_model_inputs(
        botorch_model_class, dataset, search_space_digest, model_config.model_options
    )
    config = replace(model_config, input_transform_classes=None)
    parts = _construct_submodules(config, dataset, search_space_digest, botorch_model_class)
    return inputs | {name: part for name, part in parts.items() if part is not None}


def register() -> None:
    """Registers the package with Ax; called when ``botorch_transfer.ax`` is imported."""
    adapters: list[type[TorchAdapter]] = [TransferAdapter, AuxiliaryTransferAdapter]
    for generator, adapter in zip(TransferGenerators, adapters, strict=True):
        further = [MetadataToTask] if adapter is AuxiliaryTransferAdapter else []
        registry.GENERATOR_KEY_TO_GENERATOR_SETUP[generator.value] = registry.GeneratorSetup(
            adapter_class=adapter,
            generator_class=BoTorchGenerator,
            transforms=[*registry.MBM_X_trans_base, *further, Derelativize, StandardizeByHistory],
            default_generator_kwargs={"acquisition_class": TransferAcquisition},
        )
    for name in models.__all__:
        register_model(getattr(models, name))
    register_acquisition(TransferAcquisition)
    register_transform(StandardizeByHistory)
    for stored in (TransferHistory, AuxiliaryHistory):
        CORE_ENCODER_REGISTRY[stored] = stored.to_json
        CORE_DECODER_REGISTRY[stored.__name__] = stored
    # Ax stores any dataclass, but loads only those that are registered.
    for named in (TransferGenerators, GuardRule):
        CORE_DECODER_REGISTRY[named.__name__] = named
