"""BoTorch models whose prior comes from source tasks."""

from botorch_transfer.models import pathwise  # noqa: F401  (registers the samplers)
from botorch_transfer.models.scaml import ScaMLGP

__all__ = ["ScaMLGP"]
