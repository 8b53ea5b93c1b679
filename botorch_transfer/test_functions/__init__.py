"""Families of synthetic tasks, following ``botorch.test_functions``."""

from botorch_transfer.test_functions.families import (
    AlpineFamily,
    BraninFamily,
    ForresterFamily,
    Hartmann3Family,
    Hartmann6Family,
    HartmannFamily,
    TaskFamily,
)

__all__ = [
    "AlpineFamily",
    "BraninFamily",
    "ForresterFamily",
    "Hartmann3Family",
    "Hartmann6Family",
    "HartmannFamily",
    "TaskFamily",
]
