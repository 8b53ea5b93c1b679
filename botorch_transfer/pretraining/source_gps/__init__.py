"""Source GPs: independent ones, and sequences of them."""

from botorch_transfer.pretraining.source_gps.agreement import source_agreement, tasks_agree
from botorch_transfer.pretraining.source_gps.conditioned_prior import ConditionedPrior
from botorch_transfer.pretraining.source_gps.hierarchy import Propagate, SourceHierarchy
from botorch_transfer.pretraining.source_gps.map_fit import MAPOptions
from botorch_transfer.pretraining.source_gps.source_gps import SourceGPs

__all__ = [
    "ConditionedPrior",
    "MAPOptions",
    "Propagate",
    "SourceGPs",
    "SourceHierarchy",
    "source_agreement",
    "tasks_agree",
]
