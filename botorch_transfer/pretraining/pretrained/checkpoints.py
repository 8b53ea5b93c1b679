"""How the loss of pre-training fell.

Checkpoints: an interrupted pre-training goes on where it was, and ends at the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from botorch_transfer.pretraining.saving import read_prior, write_prior


@dataclass
class LearningCurve:
    """Losses over the steps of pre-training.

    Args:
        loss: The training loss at the start of each step; with Adam that of a sub-sample, NaN for a
            step that was skipped.
        validation_steps: The numbers of steps after which the validation tasks were looked at.
        validation_loss: Their NLL, a mean over tasks, at these times.
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
        return {
            "loss": torch.tensor(self.loss, dtype=torch.double),
            "validation_steps": torch.tensor(self.validation_steps, dtype=torch.long),
            "validation_loss": torch.tensor(self.validation_loss, dtype=torch.double),
            "best_step": torch.tensor(self.best_step),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Reads what :meth:`tensors` gave."""
        lists: dict[str, Any] = {name: tensor.tolist() for name, tensor in tensors.items()}
        return cls(**lists)


_CLASS = "checkpoint of pre-training"
# L-BFGS keeps scratch space with its state.
_SCRATCH = {"al"}


class Optimizer(Protocol):
    """What a checkpoint needs of an optimizer, for instance one of PyTorch's."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state."""
        ...


@dataclass
class FitState:
    """Everything that the steps to come depend on.

    Args:
        step: The number of steps done.
        parameters: The parameters, by name.
        best: The parameters with the least validation loss so far; empty without validation.
        optimizer: The optimizer's state, see :func:`optimizer_state`.
        curve: The losses so far.
        finished: Whether there are no steps to come.
    """

    step: int
    parameters: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: tuple[dict[str, Tensor], dict[str, Any]]
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
    tensors, scalars = state.optimizer
    groups = {
        "parameters": state.parameters,
        "best": state.best,
        "optimizer": tensors,
        "curve": state.curve.tensors(),
    }
    # Copies: what is registered twice shares memory, which the format does not allow.
    flat = {
        f"{group}.{name}": tensor.clone()
        for group, members in groups.items()
        for name, tensor in members.items()
    }
    config = {"key": key, "step": state.step, "optimizer": scalars, "finished": state.finished}
    write_prior(path, _CLASS, config, flat)


def read_checkpoint(path: str | os.PathLike[str], key: str) -> FitState | None:
    """Reads a checkpoint.

    Args:
        path: The file.
        key: What identifies the run.

    Returns:
        The state, on the CPU; ``None`` if there is no such file.

    Raises:
        ValueError: If the file is damaged, or a checkpoint of another run.
    """
    if not Path(path).exists():
        return None
    config, tensors = read_prior(path, _CLASS)
    if config["key"] != key:
        raise ValueError(
            f"{str(path)!r} is the checkpoint of a run with other source data, starting values or "
            "options: delete it, or give another file."
        )

    def group(name: str) -> dict[str, Tensor]:
        prefix = f"{name}."
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

    return FitState(
        step=config["step"],
        parameters=group("parameters"),
        best=group("best"),
        optimizer=(group("optimizer"), config["optimizer"]),
        curve=LearningCurve.from_tensors(group("curve")),
        finished=config["finished"],
    )


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Takes an optimizer's state apart into tensors and what JSON can hold.

    Args:
        optimizer: The optimizer.

    Returns:
        Tensors, those of a list with their position in the name, and all else.
    """
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            where = f"{index}.{name}"
            if isinstance(value, Tensor):
                tensors[where] = value.clone()
            elif isinstance(value, list):
                if name not in _SCRATCH:
                    scalars[where] = {"length": len(value)}
                    tensors |= {
                        f"{where}.{place}": item.clone() for place, item in enumerate(value)
                    }
            else:
                scalars[where] = value
    return tensors, scalars


def restore_optimizer(
    optimizer: Optimizer, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]
) -> None:
    """Gives an optimizer the state that :func:`optimizer_state` took apart.

    Args:
        optimizer: An optimizer of the same kind, with the same parameters.
        tensors: The tensors.
        scalars: All else.
    """
    state: dict[int, dict[str, Any]] = {}

    def entries(where: str) -> tuple[dict[str, Any], str]:
        index, name = where.split(".", maxsplit=1)
        return state.setdefault(int(index), {}), name

    for where, value in scalars.items():
        entry, name = entries(where)
        if isinstance(value, dict):
            value = [tensors[f"{where}.{place}"] for place in range(value["length"])]
        entry[name] = value
    for where, tensor in tensors.items():
        if where.count(".") == 1:
            entry, name = entries(where)
            entry[name] = tensor
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies parameters, to come back to them."""
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def put_back(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Gives parameters the values that :func:`copied` kept."""
    for name, parameter in parameters.items():
        parameter.copy_(values[name])
