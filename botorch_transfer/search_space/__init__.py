"""Search spaces: from tables of runs to the inputs of models, and back."""

from botorch_transfer.search_space.choice import CategoricalParameter, OrdinalParameter
from botorch_transfer.search_space.numeric import FloatParameter, IntegerParameter
from botorch_transfer.search_space.parameter import Parameter
from botorch_transfer.search_space.simplex import SimplexParameter
from botorch_transfer.search_space.space import MAX_LISTED_VALUES, SearchSpace

__all__ = [
    "MAX_LISTED_VALUES",
    "CategoricalParameter",
    "FloatParameter",
    "IntegerParameter",
    "OrdinalParameter",
    "Parameter",
    "SearchSpace",
    "SimplexParameter",
]
