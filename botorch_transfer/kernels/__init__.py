"""Kernels and means of transferred priors, and the conditioned GPs behind them."""

from botorch_transfer.kernels.conditioned import ConditionedGPs
from botorch_transfer.kernels.coregionalization import (
    CoregionalizationKernel,
    HierarchicalKernel,
    IntrinsicCoregionalizationKernel,
    LinearCoregionalizationKernel,
    ScaMLKernel,
    WeightedSourceKernel,
)
from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel, FeatureNetwork
from botorch_transfer.kernels.hierarchy import BoostedHierarchy, ConditionedHierarchy
from botorch_transfer.kernels.source_conditional import SourceConditional, SourceConditionalKernel
from botorch_transfer.kernels.weighted_sum import EnsembleWeights, TaskWeights, WeightedSumKernel

__all__ = [
    "BiasedLinearKernel",
    "BoostedHierarchy",
    "ConditionedGPs",
    "ConditionedHierarchy",
    "CoregionalizationKernel",
    "EnsembleWeights",
    "FeatureKernel",
    "FeatureNetwork",
    "HierarchicalKernel",
    "IntrinsicCoregionalizationKernel",
    "LinearCoregionalizationKernel",
    "ScaMLKernel",
    "SourceConditional",
    "SourceConditionalKernel",
    "TaskWeights",
    "WeightedSourceKernel",
    "WeightedSumKernel",
]
