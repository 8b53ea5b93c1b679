"""Source GPs as BoTorch builds and fits them, one model a task."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.gp.hyperpriors import GPHyperparameters
from botorch_transfer.gp.stationary import stationary_function
from botorch_transfer.gp.tasks import PaddedTasks


@contextmanager
def doubles() -> Iterator[None]:
    """New tensors are in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.double)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def perturbed(kernel: Kernel) -> Kernel:
    """A kernel in double precision, with hyperparameters of no special values."""
    generator = torch.Generator().manual_seed(0)
    for parameter in kernel.double().parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data.add_(0.3 * noise)
    return kernel


def build_mll(
    tasks: PaddedTasks, index: int, kernel: str, spec: GPHyperparameters
) -> ExactMarginalLogLikelihood:
    """The marginal log likelihood of one task, with all hyperpriors registered."""
    n = int(tasks.num_points[index])
    Yvar = tasks.Yvar[index, :n].unsqueeze(-1) if tasks.fixed_noise[index] else None
    likelihood = GaussianLikelihood(
        noise_prior=spec.noise.prior(), noise_constraint=spec.noise.constraint()
    )
    covar_module = ScaleKernel(
        stationary_function(kernel).make_kernel(
            ard_num_dims=tasks.X.shape[-1],
            lengthscale_prior=spec.lengthscale.prior(),
            lengthscale_constraint=spec.lengthscale.constraint(),
        ),
        outputscale_prior=spec.outputscale.prior(),
        outputscale_constraint=spec.outputscale.constraint(),
    )
    model = SingleTaskGP(
        tasks.X[index, :n],
        tasks.Y[index, :n].unsqueeze(-1),
        Yvar,
        likelihood=None if Yvar is not None else likelihood,
        covar_module=covar_module,
        mean_module=ZeroMean(),
        outcome_transform=None,
    ).double()
    return ExactMarginalLogLikelihood(model.likelihood, model)


def set_theta(mll: ExactMarginalLogLikelihood, theta: Tensor) -> list[torch.nn.Parameter]:
    """Sets logarithms of hyperparameters, and returns the parameters that hold them."""
    kernel, noise = mll.model.covar_module, getattr(mll.likelihood, "raw_noise", None)
    kernel.base_kernel.raw_lengthscale.data.copy_(theta[:-2])
    kernel.raw_outputscale.data.copy_(theta[-2])
    parameters = [kernel.base_kernel.raw_lengthscale, kernel.raw_outputscale]
    if noise is not None and noise.requires_grad:
        noise.data.fill_(float(theta[-1]))
        parameters.append(noise)
    return parameters


def negative_log_posterior(mll: ExactMarginalLogLikelihood) -> Tensor:
    """GPyTorch divides by the number of points: undone here."""
    (X,) = mll.model.train_inputs
    return -mll(mll.model(X), mll.model.train_targets) * len(X)
