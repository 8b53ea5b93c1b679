"""GPyTorch's log posterior and its gradient, in what a closed-form objective optimizes."""

from collections.abc import Mapping

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.gp.objective import Param


def gpytorchs(
    mll: ExactMarginalLogLikelihood, params: Mapping[str, Param]
) -> tuple[Tensor, Tensor]:
    """Evaluates the negative log posterior at the present values of the hyperparameters.

    Args:
        mll: The marginal log likelihood, in training mode.
        params: The hyperparameters.

    Returns:
        The value of each member of a batch, and its derivatives in the fitted hyperparameters or
        in their logarithms.
    """
    loss = -mll(mll.model(*mll.model.train_inputs), mll.model.train_targets)
    found = []
    for param in params.values():
        if param.is_fitted:
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            (slope,) = torch.autograd.grad(loss.sum(), param.raw, **options)
            optimized = param.value.log() if param.is_log else param.value
            (of_raw,) = torch.autograd.grad(optimized.sum(), param.raw)
            found.append((slope / of_raw).reshape(loss.numel(), -1))
    return loss.detach().flatten(), torch.cat(found, dim=-1)
