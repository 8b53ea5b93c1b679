"""Transfer-learning surrogates for Bayesian optimization with GPyTorch, BoTorch and Ax."""

from botorch_transfer.average.transfer import transfer_models
from botorch_transfer.data import Domain, SourceData, as_datasets, from_dataframe
from botorch_transfer.models import (
    BoostedHierarchicalGP,
    FullyBayesianHyperpriorGP,
    GuardedTransferGP,
    HyperpriorGP,
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    MeanHierarchicalGP,
    PopulationGP,
    PretrainedGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    TransferGP,
    TwoStageTransferGP,
    WeightedSourceGP,
)
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
    "SimplexParameter",
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
