"""Pre-training: fits priors to the data of source tasks. Models take a prior as an argument."""

from botorch_transfer.gp.fit import MAPOptions
from botorch_transfer.hierarchy.prior import SourceHierarchy
from botorch_transfer.hyperbo.fit import PretrainingOptions
from botorch_transfer.hyperbo.prior import PretrainedPrior
from botorch_transfer.hyperprior.fit import DomainFitOptions, NetworkOptions
from botorch_transfer.hyperprior.prior import Hyperprior, hierarchical_negative_log_likelihood
from botorch_transfer.memo import clear_memos
from botorch_transfer.population.prior import PopulationOptions, SourcePopulation
from botorch_transfer.prior import TransferPrior
from botorch_transfer.sources.prior import SourceGPs

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
]
