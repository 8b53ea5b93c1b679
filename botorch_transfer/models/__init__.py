"""BoTorch models whose prior comes from source tasks."""

from botorch_transfer.models import pathwise  # noqa: F401  (registers the samplers)
from botorch_transfer.models.boosted import BoostedHierarchicalGP
from botorch_transfer.models.hierarchical import SequentialHierarchicalGP
from botorch_transfer.models.mean_hierarchical import MeanHierarchicalGP
from botorch_transfer.models.scaml import ScaMLGP

__all__ = [
    "BoostedHierarchicalGP",
    "MeanHierarchicalGP",
    "ScaMLGP",
    "SequentialHierarchicalGP",
]
