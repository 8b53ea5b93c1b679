"""Pathwise sampling: functions drawn from the models, for Thompson sampling."""

from botorch_transfer.models.pathwise import paths, samplers, sources

__all__ = ["paths", "samplers", "sources"]
