"""Runs that stop early: the final outcome that a part of a learning curve predicts."""

from botorch_transfer.curves.prior import CurvePrior

__all__ = ["CurvePrior"]
