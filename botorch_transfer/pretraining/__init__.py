"""Pre-training: from source data to priors."""

from botorch_transfer.pretraining.domain_fit import DomainFitOptions
from botorch_transfer.pretraining.hyperprior import Hyperprior
from botorch_transfer.pretraining.leave_one_domain_out import leave_one_domain_out
from botorch_transfer.pretraining.map_fit import MAPOptions
from botorch_transfer.pretraining.memo import clear_memos
from botorch_transfer.pretraining.network_fit import NetworkOptions
from botorch_transfer.pretraining.pretrained_prior import PretrainedPrior
from botorch_transfer.pretraining.pretraining_options import PretrainingOptions
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.source_gps import SourceGPs
from botorch_transfer.pretraining.source_hierarchy import SourceHierarchy

__all__ = [
    "DomainFitOptions",
    "Hyperprior",
    "MAPOptions",
    "NetworkOptions",
    "PretrainedPrior",
    "PretrainingOptions",
    "SourceGPs",
    "SourceHierarchy",
    "TransferPrior",
    "clear_memos",
    "leave_one_domain_out",
]
