"""Search spaces convert tables of runs to model inputs, and model inputs to tables."""

from botorch_transfer.search_space.cells import read_table
from botorch_transfer.search_space.guess import guess_space
from botorch_transfer.search_space.parameters import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
)
from botorch_transfer.search_space.space import MAX_LISTED_VALUES, SearchSpace

__all__ = [
    "MAX_LISTED_VALUES",
    "CategoricalParameter",
    "FloatParameter",
    "IntegerParameter",
    "OrdinalParameter",
    "Parameter",
    "SearchSpace",
    "guess_space",
    "read_table",
]
