"""Tables of past evaluations, read from the formats that they are published in.

Every reader returns a `Table`: its search space, the tasks as tensors in the unit cube with
outcomes to be maximized, and the rows as they were. What logarithmic, ordinal, categorical and
conditional parameters become is `botorch_transfer.SearchSpace`'s business alone.
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
