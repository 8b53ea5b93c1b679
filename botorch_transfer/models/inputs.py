"""From data sets and transforms to what a model's constructor takes.

From data sets, with source tasks beside them or inside, to what a model's constructor takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from inspect import getfullargspec
from typing import Any, ClassVar

from botorch.exceptions.errors import InputDataError
from botorch.models.gp_regression import SingleTaskGP
from botorch.models.transforms.input import ChainedInputTransform, FilterFeatures, InputTransform
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from torch import Tensor, arange, float32, float64

from botorch_transfer.data import SourceData
from botorch_transfer.pretraining.prior import TransferPrior


def without_task_feature(
    num_columns: int, task_feature: int | None, transform: InputTransform | None
) -> InputTransform | None:
    """Puts the removal of a task column in front of a transform.

    Args:
        num_columns: The number of columns of the model's inputs, the task column included.
        task_feature: The index of the task column; ``None`` if there is none.
        transform: The transform of the remaining columns.

    Returns:
        The combined transform.
    """
    if task_feature is None:
        return transform
    columns = arange(num_columns)
    drop = FilterFeatures(columns[columns != task_feature % num_columns])
    if transform is None:
        return drop
    return ChainedInputTransform(drop_task_feature=drop, prior=transform)


def split_target_and_sources(
    dataset: SupervisedDataset | MultiTaskDataset,
) -> tuple[SupervisedDataset, dict[str, SupervisedDataset]]:
    """Splits a multi-task data set, and strips the task column.

    Args:
        dataset: The target's data, or a ``MultiTaskDataset`` that also holds source tasks.

    Returns:
        The target's data set, and the source tasks' by name.
    """
    if not isinstance(dataset, MultiTaskDataset):
        return dataset, {}
    stripped = {
        name: _strip(task, dataset.task_feature_index) for name, task in dataset.datasets.items()
    }
    target = stripped.pop(dataset.target_outcome_name)
    return target, stripped


def _strip(dataset: SupervisedDataset, column: int | None) -> SupervisedDataset:
    if column is None:
        return dataset
    columns = arange(dataset.X.shape[-1])
    kept = columns[columns != column % len(columns)]
    return SupervisedDataset(
        X=dataset.X[..., kept],
        Y=dataset.Y,
        Yvar=dataset.Yvar,
        feature_names=[dataset.feature_names[index] for index in kept.tolist()],
        outcome_names=dataset.outcome_names,
    )


def check_target(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None,
    dim: int | None,
    task_feature: int | None,
) -> None:
    """Checks a target's data; none at all is legal.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of inputs.
        train_Y: A ``batch_shape x n x 1`` tensor of outcomes.
        train_Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
        dim: The number of inputs of the source tasks; ``None`` if the target may have any.
        task_feature: The index of the task column, if there is one.

    Raises:
        InputDataError: If something is wrong; the message says what to do.
        ValueError: If there is no such task column.
    """
    given = {"train_X": train_X, "train_Y": train_Y, "train_Yvar": train_Yvar}
    for name, tensor in given.items():
        if tensor is not None:
            _check_tensor(name, tensor)
    for name, tensor in (("train_Y", train_Y), ("train_Yvar", train_Yvar)):
        if tensor is not None and tensor.shape[:-1] != train_X.shape[:-1]:
            raise InputDataError(
                f"{name} has shape {tuple(tensor.shape)}, but with train_X of shape "
                f"{tuple(train_X.shape)} it must be {(*train_X.shape[:-1], 1)}."
            )
    if train_Y.shape[-1] != 1:
        raise InputDataError(
            f"Transfer models have one outcome, but train_Y has {train_Y.shape[-1]}: put one "
            "model an outcome into a ModelListGP."
        )
    _check_columns(train_X.shape[-1], dim, task_feature)


def _check_tensor(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise InputDataError(f"{name} is a {type(tensor).__name__}: pass a torch.Tensor.")
    if tensor.dtype not in (float32, float64):
        raise InputDataError(f"{name} is of dtype {tensor.dtype}: pass float64, or float32.")
    if tensor.dim() < 2:
        raise InputDataError(
            f"{name} has shape {tuple(tensor.shape)}: it needs a dimension of points and one of "
            "columns, as n x 1."
        )
    if not bool(tensor.isfinite().all()):
        raise InputDataError(f"{name} has NaN or infinite values: leave out failed evaluations.")


def _check_columns(num_columns: int, dim: int | None, task_feature: int | None) -> None:
    if task_feature is not None and not -num_columns <= task_feature < num_columns:
        raise ValueError(
            f"task_feature={task_feature} is no column of train_X, which has {num_columns}."
        )
    num_inputs = num_columns - (task_feature is not None)
    if dim is not None and num_inputs != dim:
        raise InputDataError(f"train_X has {num_inputs} inputs, but the source tasks have {dim}.")


logger = logging.getLogger(__name__)

PriorOrData = TransferPrior | Sequence[SourceData] | Mapping[str, SourceData]


class ConstructedFromDatasets(SingleTaskGP):
    """A model whose third argument is its source tasks, constructed as BoTorch's models are."""

    source_argument: ClassVar[str]
    """The constructor's name for the source tasks."""

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset | MultiTaskDataset,
        prior: PriorOrData | None = None,
        source_data: Sequence[SourceData] | Mapping[str, SourceData] | None = None,
        categorical_features: list[int] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Makes constructor arguments of data sets.

        Args:
            training_data: The target's data, or a ``MultiTaskDataset`` that holds the sources too.
            prior: The prior, or source data; it goes before those inside ``training_data``.
            source_data: Source data, another word for a ``prior`` that is yet to be pre-trained.
            categorical_features: Indices of inputs that are categories coded as numbers. Kernels
                take them for ordered numbers, which is exact for two categories; encode more of
                them one-hot, as ``SearchSpace`` does.
            **options: Further arguments of the constructor, handed through.

        Returns:
            ``train_X``, ``train_Y``, the source tasks, maybe ``train_Yvar``, and the options; a
            task column is stripped.

        Raises:
            InputDataError: If there are no source tasks, or both ``prior`` and ``source_data``.
            ValueError: If the constructor has no such option.

        Example:
            >>> inputs = ScaMLGP.construct_inputs(dataset, prior=sources)
            >>> model = ScaMLGP(**inputs)
        """
        if prior is not None and source_data is not None:
            raise InputDataError("Give either a prior or source_data, not both.")
        unknown = set(options) - set(getfullargspec(cls).args)
        if unknown:
            raise ValueError(f"{cls.__name__} has no option {sorted(unknown)[0]!r}.")
        target, inside = split_target_and_sources(training_data)
        handed_over = source_data if prior is None else prior
        if handed_over is None and not inside:
            raise InputDataError(
                f"{cls.__name__} needs source tasks: give a prior or source_data, or a "
                "MultiTaskDataset that has them."
            )
        if handed_over is not None and inside:
            logger.info("The given source tasks go before those of the MultiTaskDataset.")
        if categorical_features:
            logger.info(
                "%s takes the categorical features %s for ordered numbers.",
                cls.__name__,
                categorical_features,
            )
        inputs = super().construct_inputs(target)
        sources = inside if handed_over is None else handed_over
        return {**inputs, cls.source_argument: sources, **options}
