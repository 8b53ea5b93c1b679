"""Validates source data, which are tensors or data sets.

Every model and every pre-training starts with a call of :func:`as_datasets`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import ContextualDataset, MultiTaskDataset, SupervisedDataset
from torch import Tensor

#: One task: ``X`` (``n x d``), ``Y`` (``n x 1``, maximized), maybe ``Yvar`` (``n x 1``).
SourceData: TypeAlias = SupervisedDataset | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]

#: Default memory limit of exact joint models: about 10,000 points in double precision.
MAX_JOINT_BYTES = 8 * 2**30

#: For a model of ``n`` points, estimated number of ``n x n`` matrices in memory while a gradient of
#: the marginal likelihood is computed. Measurements gave 9 to 12.
_MATRICES_IN_FLIGHT = 10

#: Largest allowed magnitude of inputs, outcomes and noise variances. The square of a larger number
#: may overflow.
LARGEST = 1e100


def as_datasets(
    sources: Sequence[SourceData] | Mapping[str, SourceData],
) -> list[SupervisedDataset]:
    """Validates source data, and converts them to a list of data sets.

    Tensors are shared, not copied. Data sets in a sequence are returned unchanged. If ``sources``
    is a mapping, the outcome name of each returned data set is the task's key, because BoTorch
    distinguishes tasks by ``outcome_names`` (see ``MultiTaskDataset``). A task may have constant
    outcomes, a single point or repeated inputs. Tasks with ``Yvar`` and tasks without ``Yvar`` may
    be mixed.

    Args:
        sources: The source tasks, in a sequence or as a mapping from task names. Each task is a
            ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)``. ``X`` is an ``n_i x d`` tensor of
            inputs, and ``Y`` an ``n_i x 1`` tensor of outcomes, which are maximized. ``Yvar`` is an
            ``n_i x 1`` tensor of noise variances.

    Returns:
        One data set per task, in the order of ``sources``.

    Raises:
        InputDataError: If there are no tasks, or a task is empty. If a task is neither a data set
            nor a pair or triple of tensors of the right shapes. If a value is not finite, or a
            variance is not positive. If a task differs from the first task in the number or order
            of inputs, the data type or the device. The message names the task.

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
    sound = [are_in_range(t) for d in datasets.values() for _, t in _named(d.X, d.Y, d.Yvar)]
    sound += [(d.Yvar > 0).all() for d in datasets.values() if d.Yvar is not None]
    if not torch.stack(sound).all():  # a GPU synchronizes only once for all tasks
        for name, dataset in datasets.items():
            _check_values(name, dataset)
    for name in datasets if isinstance(sources, Mapping) else ():
        if datasets[name].outcome_names != [name]:
            datasets[name] = datasets[name].clone()
            datasets[name].outcome_names = [name]
    return list(datasets.values())


def task_names(sources: Sequence[SourceData] | Mapping[str, SourceData]) -> list[str]:
    """Returns the names of the source tasks, for messages and plots.

    Args:
        sources: The source tasks, in a form that ``as_datasets`` accepts.

    Returns:
        For a mapping, its keys. For a sequence, the outcome name of each ``SupervisedDataset``, and
        "source task i" for each tuple of tensors, where ``i`` is the index of the tuple. If two
        names in a sequence are equal (outcomes are often called "y"), the names of all tasks are
        "source task 0", "source task 1", ...

    Raises:
        InputDataError: If there are no tasks, or ``sources`` is one task instead of a sequence of
            tasks.

    Example:
        >>> import torch
        >>> X = torch.rand(5, 2, dtype=torch.double)
        >>> task_names([(X, X[:, :1]), (X, X[:, 1:])])
        ['source task 0', 'source task 1']
    """
    known = SupervisedDataset | Tensor | Sequence | Mapping
    if isinstance(sources, str) or not isinstance(sources, known):
        raise InputDataError(
            f"The source data are a {type(sources).__name__}: give a list or a mapping of tasks. "
            "Convert a table by from_dataframe. If you have a saved prior, load the prior by its "
            "class, such as SourceGPs.load(path). Joint models take tasks, but no saved prior."
        )
    is_one = isinstance(sources, SupervisedDataset | Tensor)
    if is_one or any(isinstance(value, Tensor) for value in sources):
        raise InputDataError("The source data are one task: put the task into a list.")
    if len(sources) == 0:
        raise InputDataError("There are no source tasks: pass at least one, or use SingleTaskGP.")
    if isinstance(sources, Mapping):
        names = [str(name) for name in sources]
        if len(set(names)) < len(names):
            text = "Two names of source tasks, such as 1 and '1', are the same text"
            raise InputDataError(f"{text}: rename one task.")
        return names
    numbered = [f"source task {rank}" for rank in range(len(sources))]
    names = [
        value.outcome_names[0] if isinstance(value, SupervisedDataset) else number
        for value, number in zip(sources, numbered, strict=True)
    ]
    return names if len(set(names)) == len(names) else numbered


_INSTEAD = "use a modular model such as ScaMLGP, thin out the source data, or raise max_bytes"


def joint_bytes(num_points: int, dtype: torch.dtype) -> int:
    """Estimates the memory that a gradient of an exact GP's marginal likelihood takes.

    Args:
        num_points: Number of points of all tasks, including the target.
        dtype: Data type of the model.

    Returns:
        The estimated number of bytes.
    """
    return _MATRICES_IN_FLIGHT * num_points**2 * dtype.itemsize


def check_joint_size(
    num_points: int, dtype: torch.dtype, max_bytes: float = MAX_JOINT_BYTES, instead: str = _INSTEAD
) -> None:
    """Raises an error if the tasks have too many points for one joint exact GP.

    Args:
        num_points: Number of points of all tasks, including the target.
        dtype: Data type of the model.
        max_bytes: Memory limit of the model.
        instead: The advice at the end of the error message.

    Raises:
        InputDataError: If a gradient of the marginal likelihood needs more than ``max_bytes``.

    Example:
        >>> check_joint_size(1_000, torch.float64)
    """
    if (needed := joint_bytes(num_points, dtype)) > max_bytes:
        raise InputDataError(
            f"The source and target tasks have {num_points:,} points together. An exact joint "
            f"model of these points would take about {needed / 2**30:,.1f} GiB of memory (the "
            f"limit is {max_bytes / 2**30:,.1f} GiB): {instead}."
        )


def evenly_spaced(length: int, most: int) -> list[int]:
    """Chooses evenly spaced indices, from the first to the last.

    Args:
        length: The number of items to choose from.
        most: The maximum number of indices.

    Returns:
        At most ``most`` indices in ascending order; only the middle index if ``most`` is one.

    Example:
        >>> evenly_spaced(9, 3), evenly_spaced(9, 1), evenly_spaced(2, 3)
        ([0, 4, 8], [4], [0, 1])
    """
    if most == 1 < length:
        return [(length - 1) // 2]
    places = torch.linspace(0, length - 1, min(length, most), dtype=torch.double)
    return places.round().long().tolist()


def with_outcomes(dataset: SupervisedDataset, Y: Tensor, Yvar: Tensor | None) -> SupervisedDataset:
    """Copies a data set; ``Y`` and ``Yvar`` replace the copy's outcomes and noise variances."""
    names: Any = {"feature_names": dataset.feature_names, "outcome_names": dataset.outcome_names}
    return SupervisedDataset(dataset.X, Y, Yvar=Yvar, **names)


def _as_dataset(name: str, value: SourceData) -> SupervisedDataset:
    holds_several = isinstance(value, MultiTaskDataset | ContextualDataset)
    if isinstance(value, SupervisedDataset) and not holds_several:
        _check_tensors(name, value.X, value.Y, value.Yvar)
        return value
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        raise InputDataError(
            f"Task {name!r} is a {type(value).__name__}: pass (X, Y), (X, Y, Yvar) or a "
            "SupervisedDataset. For a MultiTaskDataset, pass each of its `datasets` as one task."
        )
    X, Y, Yvar = (*value, None)[:3]
    _check_tensors(name, X, Y, Yvar)
    features = [f"x{column}" for column in range(X.shape[-1])]
    return SupervisedDataset(X, Y, feature_names=features, outcome_names=[name], Yvar=Yvar)


def _check_tensors(name: str, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
    """Checks the types and shapes of a task's tensors, but not their values."""
    for symbol, tensor in _named(X, Y, Yvar):
        check_type(f"Task {name!r}: {symbol}", tensor)
    if X.ndim != 2 or X.shape[1] == 0:
        raise InputDataError(f"X of task {name!r} has shape {tuple(X.shape)}, but must be n x d.")
    if len(X) == 0:
        raise InputDataError(f"Task {name!r} has no points: leave out the task.")
    for symbol, tensor in _named(X, Y, Yvar)[1:]:
        if tensor.shape != (len(X), 1):
            raise InputDataError(
                f"{symbol} of task {name!r} has the shape {tuple(tensor.shape)}, but the task has "
                f"{len(X)} points: give a {len(X)} x 1 tensor."
            )


def check_type(what: str, value: Any) -> None:
    """Raises an error unless a value is a tensor of floating-point numbers.

    Args:
        what: The name of the value, for the error message.
        value: The value.

    Raises:
        InputDataError: If the value is not a tensor, or if its data type is neither float32 nor
            float64.
    """
    if not isinstance(value, Tensor):
        raise InputDataError(
            f"{what} is a {type(value).__name__}: pass a torch.Tensor. For a target without "
            "evaluations, pass a tensor without rows, torch.empty(0, d, dtype=torch.double)."
        )
    if value.dtype not in (torch.float32, torch.float64):
        raise InputDataError(f"{what} has the type {value.dtype}: convert it by .double().")


def _check_agreement(
    name: str, dataset: SupervisedDataset, first_name: str, first: SupervisedDataset
) -> None:
    X, features = first.X, first.feature_names
    if dataset.X.shape[1] != X.shape[1]:
        text = f"Task {name!r} has {dataset.X.shape[1]} inputs, but task {first_name!r} has "
        raise InputDataError(f"{text}{X.shape[1]}: give all tasks the same inputs.")
    if dataset.feature_names != features and sorted(dataset.feature_names) == sorted(features):
        text = f"Task {name!r} has the inputs of task {first_name!r} in another order"
        raise InputDataError(f"{text}: reorder the columns of task {name!r}.")
    for symbol, tensor in _named(dataset.X, dataset.Y, dataset.Yvar):
        if (tensor.dtype, tensor.device) != (X.dtype, X.device):
            text = f"Task {name!r}: {symbol} is {tensor.dtype} on {tensor.device}, but X of task "
            text += f"{first_name!r} is {X.dtype} on {X.device}: convert one tensor by .to()."
            raise InputDataError(text)


def are_in_range(values: Tensor) -> Tensor:
    """Returns whether all values are finite and have a magnitude of at most ``LARGEST``.

    Args:
        values: The values.

    Returns:
        A scalar tensor.
    """
    # In single precision, all finite numbers are below LARGEST.
    return (values.isfinite() & (values.abs() <= LARGEST)).all()


def check_range(what: str, values: Tensor) -> None:
    """Raises an error if a value is NaN or infinite, or if its square may overflow.

    Args:
        what: The name of the values, for the error message.
        values: A ``... x n x d`` tensor.

    Raises:
        InputDataError: If a value is not finite, or if its magnitude is above ``LARGEST``.
    """
    if len(rows := (~(values.abs() <= LARGEST)).any(dim=-1).nonzero()):
        problem = f"{what} has a value that is NaN, infinite or beyond {LARGEST:g}"
        remedy = "correct the value, leave out the failed run, or use another unit"
        raise InputDataError(f"{problem} in row {int(rows[0, -1])}: {remedy}.")


def _check_values(name: str, dataset: SupervisedDataset) -> None:
    for symbol, tensor in _named(dataset.X, dataset.Y, dataset.Yvar):
        check_range(f"Task {name!r}: {symbol}", tensor)
    if dataset.Yvar is not None and not (dataset.Yvar > 0).all():
        raise InputDataError(f"Task {name!r}: Yvar has a value that is not positive: replace it.")


def _named(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> list[tuple[str, Tensor]]:
    return [("X", X), ("Y", Y)] + ([] if Yvar is None else [("Yvar", Yvar)])
