"""Transfer-learning surrogates for Bayesian optimization with GPyTorch, BoTorch and Ax."""

from botorch_transfer.data import SourceData, as_datasets, from_dataframe
from botorch_transfer.models.scaml import ScaMLGP
from botorch_transfer.pretraining.source_gps import SourceGPs
from botorch_transfer.search_space import SearchSpace

__version__ = "0.1.0.dev0"

__all__ = [
    "ScaMLGP",
    "SearchSpace",
    "SourceData",
    "SourceGPs",
    "as_datasets",
    "from_dataframe",
]
