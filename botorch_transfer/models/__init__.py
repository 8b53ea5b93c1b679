"""BoTorch models whose prior comes from source tasks."""

from botorch_transfer.models import (  # noqa: F401  (register the samplers)
    ensemble_pathwise,
    guarded_pathwise,
    joint_pathwise,
    mean_hierarchical_pathwise,
    pathwise,
    pretrained_pathwise,
)
from botorch_transfer.models.boosted_hierarchical import BoostedHierarchicalGP
from botorch_transfer.models.fully_bayesian import FullyBayesianHyperpriorGP
from botorch_transfer.models.guarded import GuardedTransferGP
from botorch_transfer.models.hyperprior import HyperpriorGP
from botorch_transfer.models.joint_coregionalization import (
    IntrinsicCoregionalizationGP,
    LinearCoregionalizationGP,
)
from botorch_transfer.models.joint_hierarchical import JointHierarchicalGP
from botorch_transfer.models.joint_scaml import JointScaMLGP
from botorch_transfer.models.joint_weighted_source import WeightedSourceGP
from botorch_transfer.models.mean_hierarchical import MeanHierarchicalGP
from botorch_transfer.models.pretrained import PretrainedGP
from botorch_transfer.models.rank_weighted import RankWeightedGP
from botorch_transfer.models.scaml import ScaMLGP
from botorch_transfer.models.sequential_hierarchical import SequentialHierarchicalGP
from botorch_transfer.models.two_stage import TwoStageTransferGP

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
    "PretrainedGP",
    "RankWeightedGP",
    "ScaMLGP",
    "SequentialHierarchicalGP",
    "TwoStageTransferGP",
    "WeightedSourceGP",
]
