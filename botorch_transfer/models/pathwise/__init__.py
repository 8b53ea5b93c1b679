"""Pathwise sampling: functions drawn from the models, for Thompson sampling.

Importing it registers the models with BoTorch's ``draw_kernel_feature_paths`` and
``draw_matheron_paths``.
"""

from botorch_transfer.models.pathwise import samplers  # noqa: F401  (registers)
from botorch_transfer.models.pathwise.sources import MIN_FEATURES, JointPath, SourcePath

__all__ = ["MIN_FEATURES", "JointPath", "SourcePath"]
