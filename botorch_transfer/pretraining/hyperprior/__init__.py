"""Distributions of GP hyperparameters, learned from several search spaces: MPHD and HyperBO+."""

from botorch_transfer.pretraining.hyperprior.domain_fit import DomainFitOptions
from botorch_transfer.pretraining.hyperprior.hyperprior import Hyperprior
from botorch_transfer.pretraining.hyperprior.network import NetworkOptions
from botorch_transfer.pretraining.hyperprior.validation import leave_one_domain_out

__all__ = ["DomainFitOptions", "Hyperprior", "NetworkOptions", "leave_one_domain_out"]
