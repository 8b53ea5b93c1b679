"""Pathwise sampling: functions drawn from the models, for Thompson sampling."""

from botorch_transfer.models.pathwise import paths, samplers, sources
from botorch_transfer.models.pathwise.sources import SourcePath

__all__ = ["SourcePath", "paths", "samplers", "sources"]
