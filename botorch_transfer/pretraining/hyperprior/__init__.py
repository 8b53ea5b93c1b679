"""Distributions of GP hyperparameters, learned from other search spaces: MPHD and HyperBO+."""

from botorch_transfer.pretraining.hyperprior.domain_fit import DomainFitOptions
from botorch_transfer.pretraining.hyperprior.estimates import DomainEstimates
from botorch_transfer.pretraining.hyperprior.hyperprior import Hyperprior
from botorch_transfer.pretraining.hyperprior.network import NetworkOptions
from botorch_transfer.pretraining.hyperprior.validation import (
    hierarchical_negative_log_likelihood,
    leave_one_domain_out,
)

__all__ = [
    "DomainEstimates",
    "DomainFitOptions",
    "Hyperprior",
    "NetworkOptions",
    "hierarchical_negative_log_likelihood",
    "leave_one_domain_out",
]
