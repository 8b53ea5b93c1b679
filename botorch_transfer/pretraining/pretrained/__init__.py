"""One GP, pre-trained on all source tasks: HyperBO, FSBO and ABLR."""

from botorch_transfer.pretraining.pretrained.objectives import PretrainingOptions
from botorch_transfer.pretraining.pretrained.prior import PretrainedPrior

__all__ = ["PretrainedPrior", "PretrainingOptions"]
