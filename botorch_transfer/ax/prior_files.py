"""Saved priors: a generation strategy keeps the path and the content's hash, not the tensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ax.exceptions.core import UserInputError

from botorch_transfer.models.guarded import GuardedTransferGP
from botorch_transfer.models.scaml import ScaMLGP
from botorch_transfer.models.target import TargetGP
from botorch_transfer.pretraining import (
    Hyperprior,
    PretrainedPrior,
    SourceGPs,
    SourceHierarchy,
)
from botorch_transfer.pretraining.memo import Memo
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.saving import prior_class_name

_CLASSES: dict[str, type[TransferPrior]] = {
    cls.__name__: cls for cls in (SourceGPs, SourceHierarchy, PretrainedPrior, Hyperprior)
}
_loaded = Memo(size=8)


def prior_class_of(model_class: type[TargetGP]) -> type[TransferPrior] | None:
    """The class of priors that a model is made of, as it is annotated; ``None`` if there is none.

    Args:
        model_class: The model.
    """
    annotated = (vars(cls).get("__annotations__", {}).get("prior") for cls in model_class.__mro__)
    return next((_CLASSES[name] for name in annotated if name in _CLASSES), None)


def guarded_class(model_class: type[TargetGP], options: Mapping[str, Any]) -> type[TargetGP]:
    """The model that a prior is for: that which a guard weighs, or the model itself.

    Args:
        model_class: The model.
        options: Its further arguments.
    """
    if not issubclass(model_class, GuardedTransferGP):
        return model_class
    return cast(type[TargetGP], options.get("transfer_model", ScaMLGP))


def describe_prior_file(
    path: str | os.PathLike[str], model_class: type[TargetGP]
) -> dict[str, str]:
    """Says of a prior's file what a generation strategy keeps.

    Args:
        path: The file, as ``prior.save(path)`` wrote it.
        model_class: The model that the prior is for.

    Returns:
        Its absolute ``"path"`` and the ``"sha256"`` of its content.

    Raises:
        FileNotFoundError: If there is no such file.
        UserInputError: If it is another kind of prior than the model takes.
        ValueError: If it is damaged, or holds no prior.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no prior file at {str(path)!r}.")
    described = {"path": str(Path(path).absolute()), "sha256": _sha256(path)}
    if model_class.source_argument != "prior":
        raise UserInputError(
            f"{model_class.__name__} takes no prior but the old runs themselves: give a history."
        )
    prior, expected = load_prior_file(described), prior_class_of(model_class)
    if expected is not None and not isinstance(prior, expected):
        raise UserInputError(
            f"{str(path)!r} holds a {type(prior).__name__}, and {model_class.__name__} takes a "
            f"{expected.__name__}: choose another model, or make that prior."
        )
    return described


def load_prior_file(described: dict[str, Any]) -> TransferPrior:
    """Loads a prior that a generation strategy refers to, once a process.

    Args:
        described: What :func:`describe_prior_file` said.

    Returns:
        The prior; treat it as immutable.

    Raises:
        UserInputError: If the file is gone, or another one has taken its place.
        ValueError: If it is damaged, or holds no prior.
    """
    path, expected = described["path"], described["sha256"]
    return _loaded.recall(expected, lambda: _load(path, expected))


def _load(path: str, expected: str) -> TransferPrior:
    if not Path(path).is_file():
        raise UserInputError(
            f"The experiment was started with the prior file {path!r}, which is gone: put it back."
        )
    if _sha256(path) != expected:
        raise UserInputError(
            f"The prior file {path!r} is not the one that the experiment was started with: put "
            "that back, or start another experiment."
        )
    return _CLASSES[prior_class_name(path)].load(path)


def _sha256(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
