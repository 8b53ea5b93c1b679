# ruff: noqa: F403
"""Transfer-learning surrogates for Bayesian optimization with GPyTorch, BoTorch and Ax.

Names are imported on first use, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botorch_transfer.average.transfer import transfer_models as transfer_models
    from botorch_transfer.data import *
    from botorch_transfer.models import *
    from botorch_transfer.pretraining import *
    from botorch_transfer.search_space import *
    from botorch_transfer.suggestion import *

__version__ = "0.2.0"

#: Mapping from modules to their public names, separated by spaces.
_ROOMS = {
    "average.transfer": "transfer_models",
    "data": "Domain SourceData as_datasets from_dataframe",
    "models": "BoostedHierarchicalGP FullyBayesianHyperpriorGP GuardedTransferGP HyperpriorGP "
    "IntrinsicCoregionalizationGP JointHierarchicalGP JointScaMLGP LinearCoregionalizationGP "
    "MeanHierarchicalGP PopulationGP PretrainedGP RankWeightedGP ScaMLGP SequentialHierarchicalGP "
    "TransferGP TwoStageTransferGP WeightedSourceGP",
    "pretraining": "Hyperprior PretrainedPrior SourceGPs SourceHierarchy SourcePopulation",
    "search_space": "CategoricalParameter FloatParameter IntegerParameter OrdinalParameter "
    "SearchSpace read_table",
    "suggestion": "backtest predict suggest",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in ("average", *_ROOMS):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *globals()]
