"""Hyperpriors: distributions over GP hyperparameters."""

from botorch_transfer.hyperpriors.spec import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
    Hyperparameter,
)

__all__ = [
    "RESIDUAL_HYPERPARAMETERS",
    "SOURCE_HYPERPARAMETERS",
    "GPHyperparameters",
    "Hyperparameter",
]
