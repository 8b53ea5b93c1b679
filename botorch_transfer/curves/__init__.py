"""Runs that stop early: what a part of a learning curve says of the final outcome."""

from botorch_transfer.curves.prior import CurvePrior

__all__ = ["CurvePrior"]
