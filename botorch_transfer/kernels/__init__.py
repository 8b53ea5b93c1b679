"""Parts of transferred priors: kernels, means, and GP posteriors of source tasks."""

from botorch_transfer.gp.combine import (
    EnsembleWeights,
    TaskWeights,
    WeightedSumKernel,
    WeightedSumMean,
)
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.hierarchy.prior import BoostedHierarchy, ConditionedHierarchy
from botorch_transfer.hyperbo.features import FeatureKernel, FeatureMean, FeatureNetwork
from botorch_transfer.joint.conditional import (
    SourceConditional,
    SourceConditionalKernel,
    SourceConditionalMean,
)
from botorch_transfer.joint.kernels import (
    CoregionalizationKernel,
    HierarchicalKernel,
    LinearCoregionalizationKernel,
    ScaMLKernel,
    WeightedSourceKernel,
)

__all__ = [
    "BoostedHierarchy",
    "ConditionedGPs",
    "ConditionedHierarchy",
    "CoregionalizationKernel",
    "EnsembleWeights",
    "FeatureKernel",
    "FeatureMean",
    "FeatureNetwork",
    "HierarchicalKernel",
    "LinearCoregionalizationKernel",
    "ScaMLKernel",
    "SourceConditional",
    "SourceConditionalKernel",
    "SourceConditionalMean",
    "TaskWeights",
    "WeightedSourceKernel",
    "WeightedSumKernel",
    "WeightedSumMean",
]
