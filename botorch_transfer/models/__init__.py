"""BoTorch models whose prior comes from source tasks."""

from botorch_transfer.models import pathwise  # noqa: F401  (registers the samplers)
from botorch_transfer.models.ensemble import RankWeightedGP, TwoStageTransferGP
from botorch_transfer.models.guarded import GuardedTransferGP
from botorch_transfer.models.hierarchical import (
    BoostedHierarchicalGP,
    MeanHierarchicalGP,
    SequentialHierarchicalGP,
)
from botorch_transfer.models.hyperprior import FullyBayesianHyperpriorGP, HyperpriorGP
from botorch_transfer.models.joint import (
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    WeightedSourceGP,
)
from botorch_transfer.models.population import PopulationGP
from botorch_transfer.models.pretrained import PretrainedGP
from botorch_transfer.models.scaml import ScaMLGP
from botorch_transfer.models.transfer import TransferGP

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
