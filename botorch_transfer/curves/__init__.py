"""Learning curves: predicts the final outcomes of runs that stopped early."""

from botorch_transfer.curves.prior import CurvePrior

__all__ = ["CurvePrior"]
