"""BoTorch models with the kernel, hyperpriors, bounds and starting values of the source GPs."""

import torch
from botorch.models import SingleTaskGP
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS, Hyperparameter, residual_kernel


def twin_of_source_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Builds a `SingleTaskGP` with the same log posterior as a source GP.

    Args:
        X: A `batch_shape x n x d` tensor.
        Y: A `batch_shape x n x 1` tensor, standardized.

    Returns:
        The model at the hyperparameters' starting values.
    """
    spec, batch_shape = SOURCE_HYPERPARAMETERS, X.shape[:-2]
    likelihood = GaussianLikelihood(
        noise_prior=spec.noise.prior(),
        noise_constraint=spec.noise.constraint(),
        batch_shape=batch_shape,
    )
    return SingleTaskGP(
        X,
        Y,
        covar_module=residual_kernel(X.shape[-1], batch_shape, spec),
        likelihood=likelihood,
        mean_module=ZeroMean(batch_shape=batch_shape),
        outcome_transform=None,
    )


def set_hyperparameters(
    model: SingleTaskGP, lengthscale: Tensor, outputscale: Tensor, noise: Tensor
) -> None:
    """Sets the hyperparameters of a twin to the values of source GPs.

    Args:
        model: The twin, from `twin_of_source_gp`.
        lengthscale: A `batch_shape x d` tensor.
        outputscale: A `batch_shape` tensor.
        noise: A `batch_shape` tensor.
    """
    spec = SOURCE_HYPERPARAMETERS
    model.covar_module.base_kernel.lengthscale = _inside(
        spec.lengthscale, lengthscale[..., None, :]
    )
    model.covar_module.outputscale = _inside(spec.outputscale, outputscale)
    model.likelihood.noise = _inside(spec.noise, noise.unsqueeze(-1))


def _inside(hyperparameter: Hyperparameter, value: Tensor) -> Tensor:
    # Rounding errors may move a value across its bound: GPyTorch's bounds have single precision.
    constraint = hyperparameter.constraint()
    return value.clamp(float(constraint.lower_bound), float(constraint.upper_bound))


def log_posterior(model: SingleTaskGP) -> float:
    """Computes the log marginal likelihood plus the log density of the hyperpriors, in nats."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    with torch.no_grad():
        per_point = mll(model(*model.train_inputs), model.train_targets)
    return float(per_point) * len(model.train_targets)
