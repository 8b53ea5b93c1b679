"""The target's own kernel: what its sources leave over."""

from __future__ import annotations

import torch
from gpytorch.kernels import ScaleKernel

from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, GPHyperparameters
from botorch_transfer.kernels.stationary import stationary_function


def residual_kernel(
    dim: int,
    batch_shape: torch.Size = torch.Size(),  # noqa: B008
    hyperparameters: GPHyperparameters = RESIDUAL_HYPERPARAMETERS,
    kernel: str = "rbf",
) -> ScaleKernel:
    """Builds a scaled stationary kernel with a lengthscale for each input.

    Args:
        dim: The number of inputs ``d``.
        batch_shape: The batch shape of the target model.
        hyperparameters: Hyperpriors, starts and bounds; the defaults are those of ScaML-GP's
            target.
        kernel: The stationary kernel's name.

    Returns:
        The kernel, at its starting values.

    Example:
        >>> residual_kernel(2).outputscale
        tensor(0.1000, grad_fn=<...>)
    """
    lengthscale, outputscale = hyperparameters.lengthscale, hyperparameters.outputscale
    return ScaleKernel(
        stationary_function(kernel).make_kernel(
            ard_num_dims=dim,
            batch_shape=batch_shape,
            lengthscale_prior=lengthscale.prior(),
            lengthscale_constraint=lengthscale.constraint(),
        ),
        batch_shape=batch_shape,
        outputscale_prior=outputscale.prior(),
        outputscale_constraint=outputscale.constraint(),
    )
