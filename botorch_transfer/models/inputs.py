"""Input transforms of models: those of the prior, and dropping a task column."""

from __future__ import annotations

from botorch.models.transforms.input import (
    ChainedInputTransform,
    FilterFeatures,
    InputTransform,
)
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
            f"task_feature={task_feature} is no column of the {num_columns} that train_X has."
        )
    columns = arange(num_columns)
    drop = FilterFeatures(columns[columns != task_feature % num_columns])
    if transform is None:
        return drop
    return ChainedInputTransform(drop_task_feature=drop, prior=transform)
