"""Families of synthetic tasks, following ``botorch.test_functions``."""

from botorch_transfer.test_functions.alpine import AlpineFamily
from botorch_transfer.test_functions.branin import BraninFamily
from botorch_transfer.test_functions.family import TaskFamily
from botorch_transfer.test_functions.forrester import ForresterFamily
from botorch_transfer.test_functions.gaussian_process import GaussianProcessFamily
from botorch_transfer.test_functions.hartmann import Hartmann3Family, Hartmann6Family
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
    "SuperDataset",
    "SuperDatasetFamily",
    "TaskFamily",
]
