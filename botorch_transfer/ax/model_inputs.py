"""Conversion of Ax's data to the arguments of a transfer model.

Ax calls :func:`transfer_inputs_for_ax` when it builds the model of a metric. Source tasks come
from the data set (:class:`TransferDataset`), or from the model's option ``prior``. The function
uses the private ``_construct_submodules`` of Ax's surrogate.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from ax.core.search_space import SearchSpaceDigest
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.surrogate import (
    Surrogate,
    _construct_submodules,
    submodel_input_constructor,
)
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.settings import min_fixed_noise
from torch import Tensor

from botorch_transfer.average.guarded import GuardedTransferGP
from botorch_transfer.average.transfer import MEMBERS, TransferGP
from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.gp.noise import AddedNoiseLikelihood
from botorch_transfer.hierarchy.prior import SourceHierarchy
from botorch_transfer.model import TransferModel
from botorch_transfer.prior import TransferPrior
from botorch_transfer.sources.scaml import ScaMLGP

logger = logging.getLogger(__name__)


class TransferDataset(SupervisedDataset):
    """Data set of the target with source tasks; the target may have no data yet.

    Use it to pass source tasks through Ax to a transfer model. Set :attr:`sources` to the source
    tasks by name. Their inputs are in Ax's model space, and their outcomes are standardized like
    the target's outcomes. Optionally set :attr:`added` to an ``n`` tensor of variances that are
    added to the noise variances of the target.
    """

    sources: Mapping[str, SourceData]
    added: Tensor | None = None

    def clone(self, deepcopy: bool = False, mask: Tensor | None = None) -> TransferDataset:
        """Copies the data, or selects rows.

        Args:
            deepcopy: Whether to copy the tensors.
            mask: An ``n`` boolean tensor, true for the rows to keep.

        Returns:
            The new data set, with the same source tasks.
        """
        copied = cast(TransferDataset, super().clone(deepcopy, mask))
        copied.sources = self.sources
        copied.added = self.added if self.added is None or mask is None else self.added[mask]
        return copied


@submodel_input_constructor.register(TransferModel)
def transfer_inputs_for_ax(
    botorch_model_class: type[TransferModel],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Constructs the arguments of a transfer model.

    Source tasks come from the data set, or from the option ``prior``. An input transform scales the
    search space and the inputs of the source tasks to the unit cube. A prior with its own input
    transform keeps this transform.

    Unlike Ax's own constructor, this function does not pass ``outcome_transform=None``. With this
    argument, a transfer model would expect outcomes in the units of the prior.

    Args:
        botorch_model_class: The class of the model.
        model_config: The configuration. The entry ``"pretraining"`` of its ``model_options`` has
            the options of pre-training.
        dataset: The data of the target, optionally a :class:`TransferDataset`.
        search_space_digest: Ax's model space.
        surrogate: Ax's surrogate. This argument has no effect.

    Returns:
        The arguments of the constructor.

    Raises:
        UserInputError: If the model has no pre-training with these options.
    """
    options, added = dict(model_config.model_options), None
    pretraining = options.pop("pretraining", {})
    if isinstance(dataset, TransferDataset):
        options["prior"], added = dataset.sources, dataset.added
    inputs = botorch_model_class.construct_inputs(dataset, **options)
    Yvar = inputs.pop("train_Yvar", None)
    if Yvar is not None and not Yvar.isfinite().all():
        logger.info("Only some trials have a standard error: the noise variance is inferred.")
        Yvar = None
    if added is not None and len(added) == len(dataset.Y) and bool(added.any()):
        if Yvar is None:
            inputs["likelihood"] = AddedNoiseLikelihood(added.to(dataset.Y))
        else:
            Yvar = Yvar + added.to(Yvar).unsqueeze(-1)
    if Yvar is not None:
        # Ax writes a standard error of zero for outcomes without noise.
        inputs["train_Yvar"] = Yvar.clamp_min(min_fixed_noise.value(Yvar.dtype))
    sources = inputs["prior"]
    transform = _input_transform(search_space_digest, sources).to(dataset.X.device)
    model_class: Any = botorch_model_class
    if issubclass(model_class, GuardedTransferGP):
        model_class = options.get("transfer_model", ScaMLGP)
    prior = _pretrained(model_class, sources, pretraining, transform, options.get("members"))
    inputs["prior"] = prior
    if not isinstance(prior, TransferPrior) or prior.input_transform is None:
        inputs["input_transform"] = transform
    config = replace(model_config, input_transform_classes=None)
    parts = _construct_submodules(config, dataset, search_space_digest, botorch_model_class)
    return inputs | {name: part for name, part in parts.items() if part is not None}


def _input_transform(search_space: SearchSpaceDigest, sources: Any) -> InputTransform:
    """Returns the transform that scales the search space and all source inputs to the unit cube."""
    bounds = torch.tensor(search_space.bounds, dtype=torch.double).T
    if not isinstance(sources, TransferPrior):
        X = torch.cat([task.X.to(bounds) for task in as_datasets(sources)])
        # If source tasks have another number of inputs, the model raises an error later.
        if X.shape[-1] == bounds.shape[-1]:
            X = torch.cat([bounds, X])
            bounds = torch.stack([X.amin(dim=0), X.amax(dim=0)])
    return Normalize(bounds.shape[-1], bounds=bounds)


def _pretrained(
    model_class: Any,
    sources: Any,
    pretraining: Mapping[str, Any],
    transform: InputTransform,
    members: Mapping[str, Any] | None = None,
) -> Any:
    """Fits the prior with the options of pre-training.

    Without options, returns the source tasks: the model then fits the prior itself.
    """
    if isinstance(sources, TransferPrior) or not pretraining:
        return sources
    if isinstance(model_class, type) and issubclass(model_class, TransferGP):
        members = members or MEMBERS
        if unknown := sorted(set(pretraining) - set(members)):
            raise UserInputError(
                f"{unknown[0]!r} in pretraining= is not a member of TransferGP: give options for "
                f"the members {sorted(members)}."
            )
        return {
            name: _pretrained(member, sources, pretraining.get(name, {}), transform)
            for name, member in members.items()
        }
    prior_class = getattr(model_class, "prior_class", None)  # a member may be a function
    if prior_class is None:
        raise UserInputError(
            f"pretraining= has no effect, because {model_class.__name__} does not use one prior: "
            "leave out pretraining=."
        )
    options = dict(pretraining)
    if prior_class is SourceHierarchy:
        options["propagate"] = model_class.propagate
    return prior_class.fit_once(sources, input_transform=transform, **options)
