"""Mean, kernel and noise of a GP whose hyperparameters have a pre-trained hyperprior."""

from __future__ import annotations

from functools import partial

import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import Prior, UniformPrior
from torch import Tensor

from botorch_transfer.hyperpriors import Hyperparameter
from botorch_transfer.hyperpriors.bounds import start_and_bounds
from botorch_transfer.hyperpriors.families import make_prior
from botorch_transfer.hyperpriors.log_density import for_map
from botorch_transfer.kernels.stationary import stationary_function
from botorch_transfer.pretraining.hyperprior import Hyperprior

_LEAST_NOISE = 1e-6
"""The lowest noise variance, relative to the signal's."""


def hyperprior_mean(hyperprior: Hyperprior, batch_shape: torch.Size) -> ConstantMean:
    """Builds the constant mean, at its hyperprior's mean.

    Args:
        hyperprior: The hyperprior; its dtype and device become the module's.
        batch_shape: The batch shape of the model.

    Returns:
        The mean, its hyperprior registered unless that is an empirical one.
    """
    prior = hyperprior.hyperprior_of("constant")
    constraint = Interval(prior.low, prior.high) if isinstance(prior, UniformPrior) else None
    shown = None if hyperprior.kind == "empirical" else prior
    mean = ConstantMean(
        constant_prior=shown, constant_constraint=constraint, batch_shape=batch_shape
    )
    mean = mean.to(hyperprior.constant_parameters)
    mean.constant = prior.mean.expand(batch_shape)
    return mean


def hyperprior_kernel(
    hyperprior: Hyperprior,
    dim: int,
    context: Tensor | None,
    batch_shape: torch.Size,
    bounded: bool = True,
) -> ScaleKernel:
    """Builds the scaled kernel with a lengthscale for each input, at its hyperpriors' means.

    Args:
        hyperprior: The hyperprior; its dtype and device become the module's.
        dim: The number of inputs ``d``.
        context: A ``d x s`` tensor that describes the inputs.
        batch_shape: The batch shape of the model.
        bounded: Whether the hyperparameters will be fitted, and so need bounds.

    Returns:
        The kernel, its hyperpriors registered unless they are empirical.
    """
    lengthscale = hyperprior.lengthscale_prior(dim, context)
    outputscale = hyperprior.hyperprior_of("outputscale")
    shown = hyperprior.kind != "empirical"
    starts, constraints = [], []
    for prior in (lengthscale, outputscale):
        start, lower, upper = start_and_bounds(prior)
        starts.append(start)
        constraint = LogTransformedInterval(lower, upper) if bounded else Positive()  # type: ignore[arg-type]
        constraints.append(constraint)
    kernel = ScaleKernel(
        stationary_function(hyperprior.kernel).make_kernel(
            ard_num_dims=dim,
            batch_shape=batch_shape,
            lengthscale_prior=for_map(lengthscale) if shown else None,
            lengthscale_constraint=constraints[0],
        ),
        batch_shape=batch_shape,
        outputscale_prior=for_map(outputscale) if shown else None,
        outputscale_constraint=constraints[1],
    ).to(hyperprior.constant_parameters)
    kernel.base_kernel.lengthscale = starts[0].expand(*batch_shape, 1, dim)
    kernel.outputscale = starts[1].expand(batch_shape)
    return kernel


def hyperprior_noise(hyperprior: Hyperprior) -> Hyperparameter:
    """Says what is known of the noise variance: hyperprior, start and bounds."""
    prior = hyperprior.hyperprior_of("noise")
    start, lower, upper = (float(value) for value in start_and_bounds(prior))
    least = _LEAST_NOISE * float(hyperprior.hyperprior_of("outputscale").mean)
    make = partial(_noise_prior, hyperprior.families["noise"], hyperprior.noise_parameters)
    return Hyperparameter(
        make_prior=None if hyperprior.kind == "empirical" else make,
        start=max(start, least),
        lower=max(lower, least),
        upper=max(upper, least),
    )


def _noise_prior(family: str, parameters: Tensor) -> Prior:
    return for_map(make_prior(family, parameters))
