"""The acquisition functions of the studies: one for all methods, or each paper's own."""

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

#: Builds the acquisition of a fitted model, the `n x 1` values so far, and the `N x d` points that
#: its values may be compared on.
Acquire = Callable[[SingleTaskGP, Tensor, Tensor], AcquisitionFunction]

PRIOR_BETA = 9.0  # three standard deviations, as in ScaML-GP's and the hierarchical models' papers
PI_MARGIN = 0.1  # HyperBO's, in units of the outcomes' standard deviation


def upper_bound(model: SingleTaskGP, Y: Tensor, reference: Tensor) -> AcquisitionFunction:
    """Three standard deviations above the mean."""
    return UpperConfidenceBound(model, beta=PRIOR_BETA)


def log_ei_or_ucb(model: SingleTaskGP, Y: Tensor, reference: Tensor) -> AcquisitionFunction:
    """The acquisition all methods share: LogEI, and UCB while there is no value to improve.

    Of a `TransferGP` it is the average of its members' improvements, as everywhere in the package.
    """
    if len(Y) == 0:
        return upper_bound(model, Y, reference)
    if isinstance(model, TransferGP):
        return AveragedImprovement.from_model(model, Y.max(), reference)
    return LogExpectedImprovement(model, best_f=Y.max())


def log_ei_or_mean(model: SingleTaskGP, Y: Tensor, reference: Tensor) -> AcquisitionFunction:
    """LogEI, and the posterior mean while there is no value to improve."""
    return log_ei_or_ucb(model, Y, reference) if len(Y) else PosteriorMean(model)


def probability_of_improvement(
    model: SingleTaskGP, Y: Tensor, reference: Tensor
) -> AcquisitionFunction:
    """HyperBO's: the probability of getting above the best value by a tenth of the prior's scale.

    While there is no value to improve on: UCB.
    """
    if len(Y) == 0:
        return upper_bound(model, Y, reference)
    return ProbabilityOfImprovement(model, best_f=Y.max() + PI_MARGIN * _scale(model))


def _scale(model: SingleTaskGP) -> Tensor:
    """The size, in the user's units, of one unit of the model's own."""
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return torch.ones((), dtype=torch.double)
    units = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    low, high = transform.untransform(units)[0].flatten()
    return (high - low).detach()


#: Those that a study may use for all models; `"paper"` stands for each paper's own.
COMMON: dict[str, Acquire] = {
    "log_ei": log_ei_or_ucb,
    "mean_log_ei": log_ei_or_mean,
    "ucb": upper_bound,
}
