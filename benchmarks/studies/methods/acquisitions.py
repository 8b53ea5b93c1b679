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
from torch import Tensor

Acquire = Callable[[SingleTaskGP, Tensor], AcquisitionFunction]
"""Builds the acquisition of a fitted model and the `n x 1` values so far."""

PRIOR_BETA = 9.0  # three standard deviations, as in ScaML-GP's and the hierarchical models' papers
PI_MARGIN = 0.1  # HyperBO's, in units of the outcomes' standard deviation


def upper_bound(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """Three standard deviations above the mean."""
    return UpperConfidenceBound(model, beta=PRIOR_BETA)


def log_ei_or_ucb(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """The acquisition all methods share: LogEI, and UCB while there is no value to improve."""
    if len(Y) == 0:
        return upper_bound(model, Y)
    return LogExpectedImprovement(model, best_f=Y.max())


def probability_of_improvement(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """HyperBO's: the probability of getting above the best value by a tenth of the prior's scale.

    While there is no value to improve on: UCB.
    """
    if len(Y) == 0:
        return upper_bound(model, Y)
    return ProbabilityOfImprovement(model, best_f=Y.max() + PI_MARGIN * _scale(model))


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
