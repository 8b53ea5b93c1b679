"""Families of synthetic tasks, following ``botorch.test_functions``."""

from botorch_transfer.test_functions.branin import BraninFamily
from botorch_transfer.test_functions.hartmann import Hartmann3Family

__all__ = ["BraninFamily", "Hartmann3Family"]
