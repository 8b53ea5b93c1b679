"""What pre-training leaves: an immutable object that models are conditioned on."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Self, get_args

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from torch import Tensor
from torch.nn import Module

from botorch_transfer.kernels.conditioned_batch import own_buffers, shallow_copy
from botorch_transfer.pretraining.input_transforms import (
    describe_transform,
    frozen_input_transform,
    input_labels,
    resolve_input_transform,
    restore_transform,
)
from botorch_transfer.pretraining.saving import read_prior, write_prior
from botorch_transfer.pretraining.tasks import OutcomeScale, check_outcome_scale

_TRANSFORM = "input_transform."


class TransferPrior(Module, ABC):
    """Base class of priors: everything learned from source data before the target is seen.

    A prior is a module without anything to fit. It moves with ``.to()``, has a ``state_dict``, can
    be copied and pickled, and saves to one file. Models hold a view of it, so nothing that happens
    to a model reaches the prior or its other models.

    Args:
        outcome_scale: The units that the prior speaks in: source outcomes standardized one by one
            (``"per_task"``), all together (``"pooled"``), or as they were (``"raw"``).
        input_transform: The frozen transform from the user's inputs to the prior's, inherited by
            models.

    Raises:
        ValueError: If the input transform is not frozen, or there are no such units.
    """

    input_transform: InputTransform | None
    outcome_scale_index: Tensor

    def __init__(
        self, outcome_scale: OutcomeScale, input_transform: InputTransform | None = None
    ) -> None:
        super().__init__()
        check_outcome_scale(outcome_scale)
        self.outcome_scale = outcome_scale
        # In the state_dict, so that it cannot be loaded into a prior that speaks in other units.
        index = get_args(OutcomeScale).index(outcome_scale)
        self.register_buffer("outcome_scale_index", torch.tensor(index))
        self.input_transform = frozen_input_transform(input_transform)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        key = f"{prefix}outcome_scale_index"
        loaded = get_args(OutcomeScale)[int(state_dict.get(key, self.outcome_scale_index))]
        if loaded != self.outcome_scale:
            raise ValueError(
                f"The state_dict is of a prior with outcome_scale={loaded!r}, and this one has "
                f"{self.outcome_scale!r}."
            )
        # Views share their tensors: new ones are loaded into, not those.
        for module in self.modules():
            own_buffers(module)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """The number of input dimensions ``d``; ``None`` if the prior serves any number."""

    def input_transform_for(self, dim: int, given: InputTransform | None) -> InputTransform | None:
        """Finds the input transform of a model.

        Args:
            dim: The number of the model's inputs.
            given: The model's own argument.

        Returns:
            The prior's transform, a copy in evaluation mode, or the argument if the prior has none.

        Raises:
            ValueError: If the argument is not frozen, or is another transform than the prior's.
        """
        return resolve_input_transform(self.input_transform, given)

    def _transformed(self, X: Tensor) -> Tensor:
        # By a copy: BoTorch's transforms take on, and keep, the precision of what they meet.
        return X if self.input_transform is None else deepcopy(self.input_transform)(X)

    @abstractmethod
    def _config(self) -> dict[str, Any]:
        """What JSON can hold of the prior, for :meth:`save`."""

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """The tensors that :meth:`_restore` needs, for :meth:`save`."""

    @classmethod
    @abstractmethod
    def _restore(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        input_transform: InputTransform | None,
    ) -> Self:
        """Builds the prior from what was saved."""

    @classmethod
    @abstractmethod
    def fit_once(cls, source_data: Any, **kwargs: Any) -> Self:
        """Pre-trains, or recalls the prior that the same content gave before.

        Args:
            source_data: The source tasks, or domains.
            **kwargs: The options of the class's own pre-training.

        Returns:
            The prior; treat it as immutable, others may hold it.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the prior to one safetensors file.

        Args:
            path: Where to write; an existing file is replaced once the new one is complete.

        Raises:
            FileNotFoundError: If there is no such folder.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.save("sources.safetensors")
            >>> SourceGPs.load("sources.safetensors").task_names
            ('monday',)
        """
        config, tensors = self._config(), self._tensors()
        config["outcome_scale"] = self.outcome_scale
        if self.input_transform is not None:
            config["input_transform"], saved = describe_transform(self.input_transform)
            tensors |= {f"{_TRANSFORM}{name}": tensor for name, tensor in saved.items()}
            if labels := input_labels(self.input_transform):
                config["input_labels"] = list(labels)
        write_prior(path, type(self).__name__, config, tensors)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str | None = None,
        input_transform: InputTransform | None = None,
    ) -> Self:
        """Loads a prior that :meth:`save` wrote. Nothing is ever unpickled.

        Args:
            path: The file.
            device: Where to put the prior; the CPU if omitted.
            input_transform: The prior's input transform, needed only where it is none of BoTorch's
                ``Normalize``, which the file holds.

        Returns:
            The prior.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, is no prior, or holds another class or an unknown
                version.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> SourceGPs.fit([(X, X.sum(-1, keepdim=True))]).save("prior.safetensors")
            >>> SourceGPs.load("prior.safetensors", device="cpu").dim
            2
        """
        return cls._restore(*cls._read(path, device, input_transform)).to(device)

    @classmethod
    def _read(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str | None,
        input_transform: InputTransform | None,
    ) -> tuple[dict[str, Any], dict[str, Tensor], InputTransform | None]:
        """Reads what :meth:`_restore` takes from a file."""
        config, tensors = read_prior(path, cls.__name__, device)
        saved = {
            name.removeprefix(_TRANSFORM): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(_TRANSFORM)
        }
        kind, labels = config.pop("input_transform", None), config.pop("input_labels", None)
        return config, tensors, restore_transform(kind, saved, input_transform, labels)

    def view(self) -> Self:
        """Another prior on the same tensors: moving or loading one does not change the other."""
        return shallow_copy(self)

    @abstractmethod
    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """The outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior speaks in raw units.
        """
