"""BoTorch models with a prior that is learned from source tasks."""

from botorch_transfer.average.guarded import GuardedTransferGP
from botorch_transfer.average.transfer import TransferGP
from botorch_transfer.hierarchy.models import (
    BoostedHierarchicalGP,
    MeanHierarchicalGP,
    SequentialHierarchicalGP,
)
from botorch_transfer.hyperbo.model import PretrainedGP
from botorch_transfer.hyperprior.models import FullyBayesianHyperpriorGP, HyperpriorGP
from botorch_transfer.joint.models import (
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    WeightedSourceGP,
)
from botorch_transfer.population.model import PopulationGP
from botorch_transfer.sources.ensembles import RankWeightedGP, TwoStageTransferGP
from botorch_transfer.sources.scaml import ScaMLGP

__all__ = [
    "BoostedHierarchicalGP",
    "FullyBayesianHyperpriorGP",
    "GuardedTransferGP",
    "HyperpriorGP",
    "IntrinsicCoregionalizationGP",
    "JointHierarchicalGP",
    "JointScaMLGP",
    "LinearCoregionalizationGP",
    "MeanHierarchicalGP",
    "PopulationGP",
    "PretrainedGP",
    "RankWeightedGP",
    "ScaMLGP",
    "SequentialHierarchicalGP",
    "TransferGP",
    "TwoStageTransferGP",
    "WeightedSourceGP",
]
