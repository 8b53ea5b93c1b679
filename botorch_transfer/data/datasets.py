"""Source data as tensors or data sets: validation of source data.

Every model and every pre-training calls :func:`as_datasets` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import ContextualDataset, MultiTaskDataset, SupervisedDataset
from pandas import DataFrame
from torch import Tensor

SourceData: TypeAlias = SupervisedDataset | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""One task: ``X`` (``n x d``), ``Y`` (``n x 1``, maximized), maybe ``Yvar`` (``n x 1``)."""

MAX_JOINT_BYTES = 8 * 2**30
"""Default memory limit of exact joint models: about 10,000 points in double precision."""

_MATRICES_IN_FLIGHT = 10
"""Number of ``n x n`` matrices in memory during a gradient of the likelihood (9 to 12 measured)."""

LARGEST = 1e100
"""The largest magnitude of inputs, outcomes and noise variances; squares of more may overflow."""


def as_datasets(
    sources: Sequence[SourceData] | Mapping[str, SourceData],
) -> list[SupervisedDataset]:
    """Validates source data, and brings them into one form.

    Tensors are shared, not copied. Data sets in a sequence are returned as they are. In a mapping,
    each task gets its key as outcome name, because BoTorch distinguishes tasks by ``outcome_names``
    (see ``MultiTaskDataset``); ``task_names`` of the result are the keys again. Tasks with constant
    outcomes, one single point or repeated inputs are legal, and so is ``Yvar`` for some tasks only.

    Args:
        sources: The source tasks, in a sequence or as a mapping from their names; each a
            ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)`` with an ``n_i x d`` tensor of
            inputs, an ``n_i x 1`` tensor of outcomes, which are maximized, and an ``n_i x 1``
            tensor of observation variances.

    Returns:
        One data set a task, in the same order.

    Raises:
        InputDataError: If there are no tasks, or a task is empty, isn't a pair or triple of tensors
            of the right shapes, has values that aren't finite or variances that aren't positive, or
            disagrees with the first task in the number or order of inputs, the data type or the
            device. The message names the task.

    Example:
        >>> import torch
        >>> X = torch.rand(5, 2, dtype=torch.double)
        >>> datasets = as_datasets({"monday": (X, X.sum(-1, keepdim=True))})
        >>> task_names(datasets)
        ['monday']
    """
    names = task_names(sources)
    values = sources.values() if isinstance(sources, Mapping) else sources
    datasets = {name: _as_dataset(name, value) for name, value in zip(names, values, strict=True)}
    for name, dataset in datasets.items():
        _check_agreement(name, dataset, names[0], datasets[names[0]])
    if not torch.stack([_is_sound(dataset) for dataset in datasets.values()]).all():
        for name, dataset in datasets.items():
            _check_values(name, dataset)
    if isinstance(sources, Mapping):
        return [_renamed(dataset, name) for name, dataset in datasets.items()]
    return list(datasets.values())


def task_names(sources: Sequence[SourceData] | Mapping[str, SourceData]) -> list[str]:
    """Names the source tasks, for messages and pictures.

    Args:
        sources: As ``as_datasets`` takes them.

    Returns:
        The keys of a mapping. Otherwise the outcome names of the data sets, with "source task 0",
        "source task 1", ... for tensors; if these names aren't all different (the outcome is often
        just called "y"), such numbers for all.

    Raises:
        InputDataError: If there are no tasks, or ``sources`` is one task instead of a sequence of
            tasks.

    Example:
        >>> import torch
        >>> X = torch.rand(5, 2, dtype=torch.double)
        >>> task_names([(X, X[:, :1]), (X, X[:, 1:])])
        ['source task 0', 'source task 1']
    """
    if isinstance(sources, str | PathLike):
        raise InputDataError(
            f"The source data are the text {str(sources)!r}: load a saved prior by its class, as "
            "in SourceGPs.load(path), or read a table and pass it to from_dataframe."
        )
    if isinstance(sources, DataFrame):
        raise InputDataError(
            "The source data are a DataFrame: describe its parameters by a SearchSpace and make "
            "source data of it by from_dataframe."
        )
    if not isinstance(sources, SupervisedDataset | Tensor | Sequence | Mapping):
        raise InputDataError(
            f"The source data are a {type(sources).__name__}: give a list or a mapping of tasks. "
            "Joint models take these themselves, not a pre-trained prior."
        )
    if isinstance(sources, SupervisedDataset | Tensor) or any(
        isinstance(value, Tensor) for value in sources
    ):
        raise InputDataError(
            "The source data are one task, but a sequence of tasks was expected: put it into a "
            "list."
        )
    if len(sources) == 0:
        raise InputDataError("There are no source tasks: pass at least one, or use SingleTaskGP.")
    if isinstance(sources, Mapping):
        names = [str(name) for name in sources]
        if len(set(names)) < len(names):
            raise InputDataError("Two source tasks have the same name once it is text: rename one.")
        return names
    numbered = [f"source task {rank}" for rank in range(len(sources))]
    names = [
        value.outcome_names[0] if isinstance(value, SupervisedDataset) else number
        for value, number in zip(sources, numbered, strict=True)
    ]
    return names if len(set(names)) == len(names) else numbered


_INSTEAD = "use a modular model such as ScaMLGP, thin out the source data, or raise max_bytes"


def joint_bytes(num_points: int, dtype: torch.dtype) -> int:
    """Estimates the memory a gradient of an exact GP's marginal likelihood takes.

    Args:
        num_points: Number of points of all tasks, the target included.
        dtype: Data type of the model.

    Returns:
        A number of bytes.
    """
    return _MATRICES_IN_FLIGHT * num_points**2 * dtype.itemsize


def check_joint_size(
    num_points: int,
    dtype: torch.dtype,
    max_bytes: float = MAX_JOINT_BYTES,
    instead: str = _INSTEAD,
) -> None:
    """Refuses source data that are too large for one exact GP over the points of all tasks.

    Args:
        num_points: Number of points of all tasks, the target included.
        dtype: Data type of the model.
        max_bytes: Memory that the model may take.
        instead: What the user can do about it, for the message.

    Raises:
        InputDataError: If a gradient of its marginal likelihood would take more.

    Example:
        >>> check_joint_size(1_000, torch.float64)
    """
    needed = joint_bytes(num_points, dtype)
    if needed > max_bytes:
        raise InputDataError(
            f"The source and target tasks have {num_points:,} points together, for which an exact "
            f"joint model would take about {needed / 2**30:,.1f} GiB of memory (the limit is "
            f"{max_bytes / 2**30:,.1f} GiB): {instead}."
        )


def evenly_spaced(length: int, most: int) -> list[int]:
    """Chooses evenly spaced indices, from the first to the last.

    Args:
        length: How many there are.
        most: How many to choose at most.

    Returns:
        The indices in ascending order: all if there are no more, the middle one of a single one.

    Example:
        >>> evenly_spaced(9, 3), evenly_spaced(9, 1), evenly_spaced(2, 3)
        ([0, 4, 8], [4], [0, 1])
    """
    if most == 1 < length:
        return [(length - 1) // 2]
    places = torch.linspace(0, length - 1, min(length, most), dtype=torch.double)
    return places.round().long().tolist()


def _as_dataset(name: str, value: SourceData) -> SupervisedDataset:
    if isinstance(value, MultiTaskDataset | ContextualDataset):
        raise InputDataError(
            f"Task {name!r} is a {type(value).__name__}, which holds several data sets: pass "
            "those in its `datasets` that are source tasks."
        )
    if isinstance(value, SupervisedDataset):
        _check_tensors(name, value.X, value.Y, value.Yvar)
        return value
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        raise InputDataError(
            f"Task {name!r} is a {type(value).__name__}: pass a SupervisedDataset, (X, Y) or (X, "
            "Y, Yvar)."
        )
    X, Y, Yvar = (*value, None)[:3]
    _check_tensors(name, X, Y, Yvar)
    features = [f"x{column}" for column in range(X.shape[-1])]
    return SupervisedDataset(X, Y, feature_names=features, outcome_names=[name], Yvar=Yvar)


def _check_tensors(name: str, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
    """Checks types and shapes, which the other checks rely on."""
    for symbol, tensor in _named(X, Y, Yvar):
        check_type(f"Task {name!r}: {symbol}", tensor)
    if X.ndim != 2 or X.shape[1] == 0:
        raise InputDataError(f"Task {name!r}: X has the shape {tuple(X.shape)}: it must be n x d.")
    if len(X) == 0:
        raise InputDataError(f"Task {name!r} is empty: leave it out.")
    for symbol, tensor in _named(X, Y, Yvar)[1:]:
        if tensor.shape != (len(X), 1):
            raise InputDataError(
                f"Task {name!r}: {symbol} has the shape {tuple(tensor.shape)} for {len(X)} "
                f"points: it must be n x 1, that is {len(X)} x 1."
            )


def check_type(what: str, value: Any) -> None:
    """Refuses anything but a tensor of floating-point numbers.

    Args:
        what: What the value is, for the message.
        value: The value.

    Raises:
        InputDataError: If it is no tensor, or a tensor of other numbers.
    """
    if not isinstance(value, Tensor):
        raise InputDataError(
            f"{what} is a {type(value).__name__}: pass a torch.Tensor; of a target without "
            "evaluations one without rows, as torch.empty(0, d, dtype=torch.double)."
        )
    if value.dtype not in (torch.float32, torch.float64):
        raise InputDataError(
            f"{what} has the type {value.dtype}: convert it by .double() or .float()."
        )


def _check_agreement(
    name: str, dataset: SupervisedDataset, first_name: str, first: SupervisedDataset
) -> None:
    X, features = first.X, first.feature_names
    if dataset.X.shape[1] != X.shape[1]:
        raise InputDataError(
            f"Task {name!r} has {dataset.X.shape[1]} inputs, but task {first_name!r} has "
            f"{X.shape[1]}: all tasks must share one input space."
        )
    if dataset.feature_names != features and sorted(dataset.feature_names) == sorted(features):
        raise InputDataError(
            f"Task {name!r} has the inputs of task {first_name!r} in another order "
            f"({dataset.feature_names}): reorder the columns of X."
        )
    for symbol, tensor in _named(dataset.X, dataset.Y, dataset.Yvar):
        for kind in ("dtype", "device"):
            found, expected = getattr(tensor, kind), getattr(X, kind)
            if found != expected:
                raise InputDataError(
                    f"Task {name!r}: {symbol} has the {kind} {found}, but X of task "
                    f"{first_name!r} has {expected}: convert one of them by .to()."
                )


def _is_sound(dataset: SupervisedDataset) -> Tensor:
    """Whether all values are valid, as a tensor: all tasks need one synchronization only."""
    sound = are_in_range(dataset.X) & are_in_range(dataset.Y)
    if dataset.Yvar is None:
        return sound
    return sound & are_in_range(dataset.Yvar) & (dataset.Yvar > 0).all()


def are_in_range(values: Tensor) -> Tensor:
    """Returns whether all values are finite, and so small that their variance is, too.

    Args:
        values: The values.

    Returns:
        A tensor without dimensions.
    """
    # The bound is infinite in single precision.
    return (values.isfinite() & (values.abs() <= LARGEST)).all()


def check_range(what: str, values: Tensor) -> None:
    """Refuses finite values whose variance would not be finite.

    Args:
        what: What they are, for the message.
        values: The values.

    Raises:
        InputDataError: If a value is too large.
    """
    if not are_in_range(values):
        raise InputDataError(
            f"{what} has a value beyond {LARGEST:g}, whose square is no number of double "
            "precision: give it in another unit, or as a logarithm."
        )


def _check_values(name: str, dataset: SupervisedDataset) -> None:
    for symbol, tensor in _named(dataset.X, dataset.Y, dataset.Yvar):
        if len(rows := (~tensor.isfinite()).any(dim=-1).nonzero()):
            raise InputDataError(
                f"Task {name!r}: {symbol} has a NaN or infinite value in row {int(rows[0])}: drop "
                "failed runs, or give them a finite outcome (from_dataframe does both)."
            )
        check_range(f"Task {name!r}: {symbol}", tensor)
    if dataset.Yvar is not None and not (dataset.Yvar > 0).all():
        raise InputDataError(
            f"Task {name!r}: Yvar has a value that is not positive: raise it to a small variance, "
            "or leave Yvar out to have the noise inferred."
        )


def _named(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> list[tuple[str, Tensor]]:
    return [("X", X), ("Y", Y)] + ([] if Yvar is None else [("Yvar", Yvar)])


def _renamed(dataset: SupervisedDataset, name: str) -> SupervisedDataset:
    if dataset.outcome_names == [name]:
        return dataset
    renamed = dataset.clone()
    renamed.outcome_names = [name]
    return renamed
