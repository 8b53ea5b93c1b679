"""The acquisition functions of the studies: one for all methods, or each paper's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
)
from botorch.models import SingleTaskGP
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_transfer import TransferGP
from botorch_transfer.acquisition import AveragedImprovement

Acquire = Callable[[SingleTaskGP, Tensor], AcquisitionFunction]
"""Builds the acquisition of a fitted model and the `n x 1` values so far."""

PRIOR_BETA = 9.0  # three standard deviations, as in ScaML-GP's and the hierarchical models' papers
NUM_REFERENCE = 256
PI_MARGIN = 0.1  # HyperBO's, in units of the outcomes' standard deviation


def upper_bound(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """Three standard deviations above the mean."""
    return UpperConfidenceBound(model, beta=PRIOR_BETA)


def log_ei_or_ucb(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """The acquisition all methods share: LogEI, and UCB while there is no value to improve.

    Of a `TransferGP` it is the average of its members' improvements, as everywhere in the package.
    """
    if len(Y) == 0:
        return upper_bound(model, Y)
    if isinstance(model, TransferGP):
        X_reference = draw_sobol_samples(_unit_cube(model), NUM_REFERENCE, 1, seed=0)[:, 0]
        return AveragedImprovement.from_model(model, Y.max(), X_reference)
    return LogExpectedImprovement(model, best_f=Y.max())


def probability_of_improvement(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """HyperBO's: the probability of getting above the best value by a tenth of the prior's scale.

    While there is no value to improve on: UCB.
    """
    if len(Y) == 0:
        return upper_bound(model, Y)
    return ProbabilityOfImprovement(model, best_f=Y.max() + PI_MARGIN * _scale(model))


def _unit_cube(model: SingleTaskGP) -> Tensor:
    X = model.train_inputs[0]
    return torch.stack([X.new_zeros(X.shape[-1]), X.new_ones(X.shape[-1])])


def _scale(model: SingleTaskGP) -> Tensor:
    """The size, in the user's units, of one unit of the model's own."""
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return torch.ones((), dtype=torch.double)
    units = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    low, high = transform.untransform(units)[0].flatten()
    return (high - low).detach()


COMMON: dict[str, Acquire] = {"log_ei": log_ei_or_ucb, "ucb": upper_bound}
"""Those that a study may use for all models; `"paper"` stands for each paper's own."""
