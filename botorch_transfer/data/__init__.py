"""Source data: the evaluations of earlier tasks, in one validated form.

Source data are a list of tasks, or a mapping from task names to tasks. A task is a tuple of tensors
or BoTorch's ``SupervisedDataset``. ``as_datasets`` validates source data, and ``from_dataframe``
makes source data from a table of old runs. Methods that learn from several search spaces take
``Domain``s. A domain is one search space with the source tasks that were evaluated in it.
"""

from botorch_transfer.data.datasets import (
    MAX_JOINT_BYTES,
    SourceData,
    as_datasets,
    check_joint_size,
    task_names,
)
from botorch_transfer.data.domains import Domain, default_context
from botorch_transfer.data.tables import from_dataframe

__all__ = [
    "MAX_JOINT_BYTES",
    "Domain",
    "SourceData",
    "as_datasets",
    "check_joint_size",
    "default_context",
    "from_dataframe",
    "task_names",
]
