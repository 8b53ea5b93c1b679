"""Pre-training: it turns source data into priors, the objects that models are built on."""

from botorch_transfer.pretraining.hyperprior.domain_fit import DomainFitOptions
from botorch_transfer.pretraining.hyperprior.hyperprior import Hyperprior
from botorch_transfer.pretraining.hyperprior.network import NetworkOptions
from botorch_transfer.pretraining.hyperprior.validation import (
    hierarchical_negative_log_likelihood,
    leave_one_domain_out,
)
from botorch_transfer.pretraining.memo import clear_memos
from botorch_transfer.pretraining.population import PopulationOptions, SourcePopulation
from botorch_transfer.pretraining.pretrained import PretrainedPrior, PretrainingOptions
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.source_gps import MAPOptions, SourceGPs, SourceHierarchy

__all__ = [
    "DomainFitOptions",
    "Hyperprior",
    "MAPOptions",
    "NetworkOptions",
    "PopulationOptions",
    "PretrainedPrior",
    "PretrainingOptions",
    "SourceGPs",
    "SourceHierarchy",
    "SourcePopulation",
    "TransferPrior",
    "clear_memos",
    "hierarchical_negative_log_likelihood",
    "leave_one_domain_out",
]
