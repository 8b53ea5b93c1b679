"""Base class of priors: the immutable objects that pre-training makes and models are built on.

Read this to write a prior of your own, or to see what all priors share: units, input transforms,
saving and loading, views, and pre-training that is done once for the same content.
"""

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

from botorch_transfer.data import as_datasets, task_names
from botorch_transfer.gp.state import NamedState, own_buffers, shallow_copy
from botorch_transfer.gp.tasks import OutcomeScale, check_choice
from botorch_transfer.input_transforms import (
    describe_transform,
    frozen_input_transform,
    input_labels,
    resolve_input_transform,
    restore_transform,
)
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.saving import read_prior, write_prior

_TRANSFORM = "input_transform."

_HOW = {"progress", "n_jobs", "max_bytes", "chunk_elements", "checkpoint", "checkpoint_every"}
"""Options that say how to compute a prior. The result does not depend on them."""

_pretrained = Memo(size=16)


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Selects the tensors whose names have a prefix, by their names without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


class TransferPrior(NamedState, ABC):
    """Base class of priors: everything learned from the source data.

    A prior is a module without parameters to fit. It moves with ``.to()``, has a ``state_dict``,
    can be copied and pickled, and saves to one file. Models hold a view of it: nothing that happens
    to a model changes the prior or other models.

    Args:
        outcome_scale: The prior's units: source outcomes standardized task by task
            (``"per_task"``), all together (``"pooled"``), or not at all (``"raw"``).
        input_transform: The frozen transform from the user's inputs to the prior's. Models inherit
            it.

    Raises:
        ValueError: If the input transform is not frozen, or the units are unknown.
    """

    input_transform: InputTransform | None
    outcome_scale_index: Tensor

    def __init__(
        self, outcome_scale: OutcomeScale, input_transform: InputTransform | None = None
    ) -> None:
        super().__init__()
        check_choice("outcome_scale", outcome_scale, OutcomeScale)
        self.outcome_scale = outcome_scale
        # In the state_dict, so that a prior with other units refuses it.
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
        # Views share their tensors: load into copies, so that other views stay as they are.
        for module in self.modules():
            own_buffers(module)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @property
    def dim(self) -> int | None:
        """The number of input dimensions ``d``; ``None`` if the prior serves any number."""
        return None

    def input_transform_for(self, dim: int, given: InputTransform | None) -> InputTransform | None:
        """Returns the input transform of a model.

        Args:
            dim: The number of the model's inputs.
            given: The model's own argument.

        Returns:
            A copy of the prior's transform in evaluation mode, or the argument if the prior has
            none.

        Raises:
            ValueError: If the argument is not frozen, or differs from the prior's transform.
        """
        return resolve_input_transform(self.input_transform, given)

    def _transformed(self, X: Tensor) -> Tensor:
        # On a copy: BoTorch's transforms take on, and keep, the precision of their inputs.
        return X if self.input_transform is None else deepcopy(self.input_transform)(X)

    @abstractmethod
    def _config(self) -> dict[str, Any]:
        """The part of the prior that a file's JSON header holds."""

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors that a file holds; the input transform's are added by :meth:`save`."""
        # Copies, because the format does not allow tensors that share memory.
        own = {name: tensor.clone() for name, tensor in self.named_buffers()}
        return {name: tensor for name, tensor in own.items() if not name.startswith(_TRANSFORM)}

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
    def fit_once(cls, source_data: Any, **options: Any) -> Self:
        """Pre-trains a prior, or returns a cached one for equal data and options.

        Models call this with raw source data. Ax often rebuilds models from equal data, so recent
        priors are cached.

        Args:
            source_data: The source tasks, as for ``fit``. A ``Hyperprior`` takes domains, or the
                source tasks of a single domain.
            **options: The options of ``fit``. A ``PretrainedPrior`` is HyperBO's preset; of eight
                source tasks or more it holds out a quarter to find the number of steps, unless
                ``hold_out`` or ``validation_data`` is given.

        Returns:
            The prior. Don't change it: other models may use it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit_once([(X, X.sum(-1, keepdim=True))])
            >>> sources is SourceGPs.fit_once([(X.clone(), X.sum(-1, keepdim=True))])
            True
        """
        content, options = cls._content_and_options(source_data, options)
        what = {name: options[name] for name in sorted(options) if name not in _HOW}
        key = content_key(cls.__qualname__, content, what)
        return _pretrained.recall(key, lambda: cls._pretrain(content, **options))

    @classmethod
    def _content_and_options(
        cls, source_data: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Validates source data, and fills in the options of :meth:`fit_once`."""
        datasets = as_datasets(source_data)
        return dict(zip(task_names(source_data), datasets, strict=True)), options

    @classmethod
    @abstractmethod
    def _pretrain(cls, source_data: Any, **options: Any) -> Self:
        """Pre-trains a prior, for :meth:`fit_once`."""

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
            input_transform: The prior's input transform. Needed only if it is not BoTorch's
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
        """Reads the arguments of :meth:`_restore` from a file."""
        config, tensors = read_prior(path, cls.__name__, device)
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_TRANSFORM)}
        transform = restore_transform(
            config.pop("input_transform", None),
            with_prefix(tensors, _TRANSFORM),
            input_transform,
            config.pop("input_labels", None),
        )
        return config, own, transform

    def view(self) -> Self:
        """Returns a prior on the same tensors. Moving or loading one leaves the other as it is."""
        return shallow_copy(self)

    @abstractmethod
    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Builds the outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            The transform; ``None`` if the prior's units are raw.
        """
