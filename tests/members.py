"""Ensembles of GPs for the tests, and their members by themselves."""

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, NormalPrior
from torch import Tensor

from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior
from tests.hyperprior.domains import draw_domain

PRIORS = {
    "constant": NormalPrior(0.5, 1.0),
    "lengthscale": GammaPrior(3.0, 6.0),
    "outputscale": GammaPrior(2.0, 2.0),
    "noise": GammaPrior(2.0, 200.0),
}
TEST_X = torch.rand(4, 2, generator=torch.Generator().manual_seed(9), dtype=torch.double)


def hyperprior(**options) -> Hyperprior:
    return Hyperprior.specified(**{**PRIORS, **options})


def data(n: int, dim: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws a task that is what the hyperprior expects."""
    task = draw_domain([0.5] * dim, sizes=(max(n, 1),), outputscale=1.0, seed=seed).datasets[0]
    return task.X[:n], task.Y[:n]


def build(n: int, **options) -> FullyBayesianHyperpriorGP:
    options = {"num_samples": 256, "num_members": 8, **options}
    return FullyBayesianHyperpriorGP(*data(n), hyperprior(), **options)


def member(model: FullyBayesianHyperpriorGP, index: int, X: Tensor, Y: Tensor, Yvar=None):
    """A plain GP with the hyperparameters of one member."""
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=X.shape[-1]))
    single = SingleTaskGP(
        X,
        Y,
        Yvar,
        likelihood=None if Yvar is not None else GaussianLikelihood().to(X),
        covar_module=kernel,
        mean_module=ConstantMean(),
        outcome_transform=None,
    )
    single.mean_module.constant = model.mean_module.constant[index]
    kernel.outputscale = model.covar_module.outputscale[index]
    kernel.base_kernel.lengthscale = model.covar_module.base_kernel.lengthscale[index]
    if Yvar is None:
        single.likelihood.noise_covar.register_constraint("raw_noise", _Identity())
        single.likelihood.noise_covar.raw_noise.data.copy_(model.likelihood.noise[index])
    return single.eval()


class _Identity(torch.nn.Module):
    """No bounds."""

    initial_value = None

    def transform(self, tensor: Tensor) -> Tensor:
        return tensor

    inverse_transform = transform
