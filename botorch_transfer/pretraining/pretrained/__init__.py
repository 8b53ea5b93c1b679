"""Pre-trained GPs: one GP for all tasks, learned by gradients (HyperBO, FSBO and ABLR)."""

from botorch_transfer.pretraining.pretrained.checkpoints import LearningCurve
from botorch_transfer.pretraining.pretrained.fit import PretrainingOptions
from botorch_transfer.pretraining.pretrained.prior import PretrainedPrior

__all__ = ["LearningCurve", "PretrainedPrior", "PretrainingOptions"]
