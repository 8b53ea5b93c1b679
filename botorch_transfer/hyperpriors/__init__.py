"""Hyperpriors: distributions, starting values and bounds of GP hyperparameters."""

from botorch_transfer.hyperpriors.spec import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
    Hyperparameter,
    cautious_hyperparameters,
    residual_kernel,
)

__all__ = [
    "RESIDUAL_HYPERPARAMETERS",
    "SOURCE_HYPERPARAMETERS",
    "GPHyperparameters",
    "Hyperparameter",
    "cautious_hyperparameters",
    "residual_kernel",
]
