"""Readers of tables of past evaluations in their published formats.

Every reader returns a `Table`: the search space, the tasks as tensors in the unit cube with
outcomes to be maximized, and the original rows. `botorch_transfer.SearchSpace` encodes logarithmic,
ordinal, categorical and conditional parameters.
"""

from benchmarks.tables.hpob import read_hpob
from benchmarks.tables.pd1 import read_pd1
from benchmarks.tables.shared import TREATMENTS, Treatment, read_shared
from benchmarks.tables.shipped import read_shipped
from benchmarks.tables.table import Table, make_table

__all__ = [
    "TREATMENTS",
    "Table",
    "Treatment",
    "make_table",
    "read_hpob",
    "read_pd1",
    "read_shared",
    "read_shipped",
]
