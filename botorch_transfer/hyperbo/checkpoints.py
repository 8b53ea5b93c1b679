"""Checkpoints of pre-training: an interrupted run resumes, with identical results.

Read this when you change what a run keeps. A checkpoint is one file of ``torch.save`` and is read
by ``torch.load(weights_only=True)``, which runs no code. Checkpoints of earlier versions, which
were safetensors files, are still read.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from botorch_transfer.saving import read_prior, replaced_when_complete


@dataclass
class LearningCurve:
    """The losses of a run of pre-training.

    Args:
        loss: The training loss before each step. With Adam it is that of a sub-sample. NaN for a
            step that was skipped.
        validation_steps: The numbers of steps after which the validation loss was computed.
        validation_loss: The mean NLL of the validation tasks at these times.
        best_step: The number of steps after which the parameters were kept.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> prior = PretrainedPrior.stationary(2).fit([(X, X.sum(-1, keepdim=True))], steps=10)
        >>> len(prior.learning_curve.loss)
        10
    """

    loss: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_step: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """The curve as tensors, for files."""
        # NumPy's default is double precision.
        return {name: torch.as_tensor(np.asarray(value)) for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Reads what :meth:`tensors` gave."""
        lists: dict[str, Any] = {name: tensor.tolist() for name, tensor in tensors.items()}
        return cls(**lists)


@dataclass
class FitState:
    """Everything that the remaining steps of a run depend on.

    Args:
        step: The number of steps done.
        parameters: The parameters, by name.
        best: The parameters with the least validation loss so far; empty without validation.
        optimizer: The ``"state"`` of the optimizer's ``state_dict``.
        curve: The losses so far.
        finished: Whether there are no steps left.
    """

    step: int
    parameters: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: dict[int, dict[str, Any]]
    curve: LearningCurve
    finished: bool = False


def write_checkpoint(path: str | os.PathLike[str], key: str, state: FitState) -> None:
    """Writes a checkpoint; an older one is replaced once the new one is complete.

    Args:
        path: Where to write.
        key: What identifies the run: data, starting values and options.
        state: The state.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    with replaced_when_complete(path) as unfinished:
        torch.save({"key": key, "state": vars(state) | {"curve": vars(state.curve)}}, unfinished)


def read_checkpoint(path: str | os.PathLike[str], key: str) -> FitState | None:
    """Reads a checkpoint.

    Args:
        path: The file.
        key: What identifies the run.

    Returns:
        The state, on the CPU; ``None`` if there is no such file.

    Raises:
        ValueError: If the file is damaged, or is the checkpoint of another run.
    """
    if not Path(path).exists():
        return None
    if zipfile.is_zipfile(path):
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            state = FitState(**saved["state"] | {"curve": LearningCurve(**saved["state"]["curve"])})
        except (RuntimeError, pickle.UnpicklingError, KeyError, TypeError) as error:
            raise ValueError(f"The checkpoint {str(path)!r} is damaged: delete it.") from error
        found = saved["key"]
    else:
        found, state = _read_safetensors(path)
    if found != key:
        raise ValueError(
            f"{str(path)!r} is the checkpoint of a run with other source data, starting values or "
            "options: delete it, or give another file."
        )
    return state


def _read_safetensors(path: str | os.PathLike[str]) -> tuple[str, FitState]:
    """Reads the key and the state of a checkpoint of an earlier version."""
    config, tensors = read_prior(path, "checkpoint of pre-training")
    groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups[group][rest.removeprefix("0.") if group == "optimizer" else rest] = tensor
    optimizer = groups["optimizer"]
    for name, value in config["optimizer"].items():
        where = name.removeprefix("0.")
        if isinstance(value, dict):  # a list of tensors, which have names of their own
            value = [optimizer.pop(f"{where}.{place}") for place in range(value["length"])]
        optimizer[where] = value
    if "count" in optimizer:  # the names of our own Adam
        optimizer = {
            "step": torch.tensor(float(optimizer["count"])),
            "exp_avg": optimizer["first"],
            "exp_avg_sq": optimizer["second"],
        }
    state = FitState(
        step=config["step"],
        parameters=groups["parameters"],
        best=groups["best"],
        optimizer={0: optimizer},
        curve=LearningCurve.from_tensors(groups["curve"]),
        finished=config["finished"],
    )
    return config["key"], state
