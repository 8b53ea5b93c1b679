"""Pre-training: from source data to priors."""

from botorch_transfer.pretraining.map_fit import MAPOptions
from botorch_transfer.pretraining.memo import clear_memos
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.source_gps import SourceGPs
from botorch_transfer.pretraining.source_hierarchy import SourceHierarchy

__all__ = ["MAPOptions", "SourceGPs", "SourceHierarchy", "TransferPrior", "clear_memos"]
