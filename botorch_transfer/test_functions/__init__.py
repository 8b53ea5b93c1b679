"""Families of synthetic tasks, following ``botorch.test_functions``."""

from botorch_transfer.test_functions.branin import BraninFamily
from botorch_transfer.test_functions.hartmann import Hartmann3Family
from botorch_transfer.test_functions.super_datasets import (
    LARGE_SUPER_DATASET,
    SMALL_SUPER_DATASET,
    SuperDataset,
    SuperDatasetFamily,
)

__all__ = [
    "LARGE_SUPER_DATASET",
    "SMALL_SUPER_DATASET",
    "BraninFamily",
    "Hartmann3Family",
    "SuperDataset",
    "SuperDatasetFamily",
]
