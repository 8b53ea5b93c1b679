# ruff: noqa: F403, F405
"""Transfer-learning surrogates for Bayesian optimization with GPyTorch, BoTorch and Ax.

Names are imported on first use, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botorch_transfer.average.transfer import transfer_models
    from botorch_transfer.data import *
    from botorch_transfer.models import *
    from botorch_transfer.pretraining import *
    from botorch_transfer.search_space import *
    from botorch_transfer.suggestion import *

__version__ = "0.2.0"

__all__ = [
    "BoostedHierarchicalGP",
    "CategoricalParameter",
    "Domain",
    "FloatParameter",
    "FullyBayesianHyperpriorGP",
    "GuardedTransferGP",
    "Hyperprior",
    "HyperpriorGP",
    "IntegerParameter",
    "IntrinsicCoregionalizationGP",
    "JointHierarchicalGP",
    "JointScaMLGP",
    "LinearCoregionalizationGP",
    "MeanHierarchicalGP",
    "OrdinalParameter",
    "PopulationGP",
    "PretrainedGP",
    "PretrainedPrior",
    "RankWeightedGP",
    "ScaMLGP",
    "SearchSpace",
    "SequentialHierarchicalGP",
    "SourceData",
    "SourceGPs",
    "SourceHierarchy",
    "SourcePopulation",
    "TransferGP",
    "TwoStageTransferGP",
    "WeightedSourceGP",
    "as_datasets",
    "backtest",
    "from_dataframe",
    "predict",
    "read_table",
    "suggest",
    "transfer_models",
]

_ROOMS = {
    "data": "Domain SourceData as_datasets from_dataframe",
    "pretraining": "Hyperprior PretrainedPrior SourceGPs SourceHierarchy SourcePopulation",
    "search_space": "CategoricalParameter FloatParameter IntegerParameter OrdinalParameter "
    "SearchSpace read_table",
    "suggestion": "backtest predict suggest",
    "average.transfer": "transfer_models",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
    if name in ("models", "average", *_ROOMS):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *globals()]
