"""Families of synthetic tasks, following ``botorch.test_functions``."""

from botorch_transfer.test_functions.families import (
    AlpineFamily,
    BraninFamily,
    ForresterFamily,
    GaussianProcessFamily,
    Hartmann3Family,
    Hartmann6Family,
    HartmannFamily,
    TaskFamily,
)
from botorch_transfer.test_functions.super_datasets import (
    LARGE_SUPER_DATASET,
    SMALL_SUPER_DATASET,
    SuperDataset,
    SuperDatasetFamily,
)

__all__ = [
    "LARGE_SUPER_DATASET",
    "SMALL_SUPER_DATASET",
    "AlpineFamily",
    "BraninFamily",
    "ForresterFamily",
    "GaussianProcessFamily",
    "Hartmann3Family",
    "Hartmann6Family",
    "HartmannFamily",
    "SuperDataset",
    "SuperDatasetFamily",
    "TaskFamily",
]
