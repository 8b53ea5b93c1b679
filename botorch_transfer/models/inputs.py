"""From data sets and transforms to what a model's constructor takes."""

from __future__ import annotations

from botorch.models.transforms.input import (
    ChainedInputTransform,
    FilterFeatures,
    InputTransform,
)
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from torch import arange


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

    Raises:
        ValueError: If there is no such column.
    """
    if task_feature is None:
        return transform
    if not -num_columns <= task_feature < num_columns:
        raise ValueError(
            f"task_feature={task_feature} is no column of train_X, which has {num_columns}."
        )
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
