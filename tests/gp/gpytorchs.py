"""GPyTorch's log posterior and its gradient, in what a closed-form objective optimizes."""

from collections.abc import Mapping

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.gp.objective import Part


def gpytorchs(mll: ExactMarginalLogLikelihood, parts: Mapping[str, Part]) -> tuple[Tensor, Tensor]:
    """Evaluates the negative log posterior at the present values of the hyperparameters.

    Args:
        mll: The marginal log likelihood, in training mode.
        parts: The hyperparameters.

    Returns:
        The value of each member of a batch, and its derivatives in the fitted hyperparameters or
        in their logarithms.
    """
    loss = -mll(mll.model(*mll.model.train_inputs), mll.model.train_targets)
    found = []
    for part in parts.values():
        if part.is_fitted:
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            (slope,) = torch.autograd.grad(loss.sum(), part.raw, **options)
            optimized = part.value.log() if part.is_log else part.value
            (of_raw,) = torch.autograd.grad(optimized.sum(), part.raw)
            found.append((slope / of_raw).reshape(loss.numel(), -1))
    return loss.detach().flatten(), torch.cat(found, dim=-1)
