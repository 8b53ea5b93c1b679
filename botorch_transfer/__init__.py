"""Transfer-learning surrogates for Bayesian optimization with GPyTorch, BoTorch and Ax."""

from botorch_transfer import models
from botorch_transfer.average.transfer import transfer_models
from botorch_transfer.data import Domain, SourceData, as_datasets, from_dataframe
from botorch_transfer.models import *  # noqa: F403  # all models, by its `__all__`
from botorch_transfer.pretraining import (
    Hyperprior,
    PretrainedPrior,
    SourceGPs,
    SourceHierarchy,
    SourcePopulation,
)
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
    SimplexParameter,
    read_table,
)
from botorch_transfer.suggestion import backtest, predict, suggest

__version__ = "0.2.0"

__all__ = [
    "CategoricalParameter",
    "Domain",
    "FloatParameter",
    "Hyperprior",
    "IntegerParameter",
    "OrdinalParameter",
    "PretrainedPrior",
    "SearchSpace",
    "SimplexParameter",
    "SourceData",
    "SourceGPs",
    "SourceHierarchy",
    "SourcePopulation",
    "as_datasets",
    "backtest",
    "from_dataframe",
    "predict",
    "read_table",
    "suggest",
    "transfer_models",
]
__all__ += models.__all__
