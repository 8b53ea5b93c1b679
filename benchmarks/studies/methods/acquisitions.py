"""Acquisition functions of studies: one function for all methods, or the function of each paper."""

from collections.abc import Callable

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    PosteriorMean,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
)
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_transfer import TransferGP
from botorch_transfer.acquisition import AveragedImprovement

#: Function that builds an acquisition function from a fitted model, the `n x 1` values so far, and
#: `N x d` reference points.
Acquire = Callable[[SingleTaskGP, Tensor, Tensor], AcquisitionFunction]

PRIOR_BETA = 9.0  # as in the papers on ScaML-GP and on hierarchical models
PI_MARGIN = 0.1  # HyperBO's value, in standard deviations of the outcomes


def upper_bound(model: SingleTaskGP, Y: Tensor, reference: Tensor) -> AcquisitionFunction:
    """Builds the upper confidence bound, three standard deviations above the mean."""
    return UpperConfidenceBound(model, beta=PRIOR_BETA)


def log_ei_or_ucb(model: SingleTaskGP, Y: Tensor, reference: Tensor) -> AcquisitionFunction:
    """Builds LogEI, or the upper confidence bound before the first value; all methods share it.

    For a `TransferGP`, LogEI is the average of the members' improvements (`AveragedImprovement`).
    """
    if len(Y) == 0:
        return upper_bound(model, Y, reference)
    if isinstance(model, TransferGP):
        return AveragedImprovement.from_model(model, Y.max(), reference)
    return LogExpectedImprovement(model, best_f=Y.max())


def log_ei_or_mean(model: SingleTaskGP, Y: Tensor, reference: Tensor) -> AcquisitionFunction:
    """Builds LogEI, or the posterior mean before the first value."""
    return log_ei_or_ucb(model, Y, reference) if len(Y) else PosteriorMean(model)


def probability_of_improvement(
    model: SingleTaskGP, Y: Tensor, reference: Tensor
) -> AcquisitionFunction:
    """Builds HyperBO's probability of improvement by at least a tenth of the prior's scale.

    Before the first value, this is the upper confidence bound.
    """
    if len(Y) == 0:
        return upper_bound(model, Y, reference)
    return ProbabilityOfImprovement(model, best_f=Y.max() + PI_MARGIN * _scale(model))


def _scale(model: SingleTaskGP) -> Tensor:
    """Returns the size of the model's unit of outcomes in the user's units."""
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return torch.ones((), dtype=torch.double)
    units = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    low, high = transform.untransform(units)[0].flatten()
    return (high - low).detach()


#: Acquisition functions for all models of a study; `"paper"` selects each paper's function.
COMMON: dict[str, Acquire] = {
    "log_ei": log_ei_or_ucb,
    "mean_log_ei": log_ei_or_mean,
    "ucb": upper_bound,
}
