"""The parts of a GP that pre-training learns together: mean, kernel and noise.

Read this to see what a pre-trained GP is made of, and how it is frozen. A prior holds its
parts frozen: parameters become buffers by :func:`~.state.freeze`, and parameters again by
:func:`~.state.thaw`.
"""

from __future__ import annotations

import logging
import math

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor
from torch.nn import Module

from botorch_transfer.gp.likelihood import nll
from botorch_transfer.gp.stationary import dense_covariance, stationary_function
from botorch_transfer.hyperbo.features import FeatureKernel, FeatureMean

logger = logging.getLogger(__name__)

MIN_NOISE = 1e-6
"""The smallest noise variance, in the prior's units (standardized outcomes by default)."""


class GPParts(Module):
    """A mean, a kernel and a noise variance, which may share modules.

    Args:
        mean_module: The mean.
        covar_module: The kernel.
        noise: The starting value of the noise variance.
    """

    def __init__(self, mean_module: Mean, covar_module: Kernel, noise: float = 1e-2) -> None:
        super().__init__()
        self.mean_module = mean_module
        self.covar_module = covar_module
        constraint = GreaterThan(MIN_NOISE, initial_value=noise)
        self.likelihood = GaussianLikelihood(noise_constraint=constraint)
        self.double()
        self.likelihood.noise = torch.tensor(noise, dtype=torch.double)  # now in full precision
        self._drop_hyperpriors()

    def _drop_hyperpriors(self) -> None:
        # A hyperprior would shift the marginal likelihood of every model that uses the prior.
        for module in self.modules():
            if hyperparameters := getattr(module, "_priors", None):
                logger.info(
                    "Pre-training ignores the hyperpriors %s of %s.",
                    sorted(hyperparameters),
                    type(module).__name__,
                )
                for name in list(hyperparameters):
                    del module._modules[name], hyperparameters[name]

    @property
    def noise(self) -> Tensor:
        """The noise variance, a tensor with one element."""
        return self.likelihood.noise

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates mean and covariance, noise left out.

        Args:
            X: A ``... x n x d`` tensor of inputs.

        Returns:
            A ``... x n`` and a ``... x n x n`` tensor. Features that mean and kernel share are
            computed once.
        """
        mean, kernel, x = self._on_features(X)
        return mean, dense_covariance(kernel, x)

    def _on_features(self, X: Tensor) -> tuple[Tensor, Kernel, Tensor]:
        """The mean, the kernel and its inputs; on a network, the base kernel and the features."""
        mean, kernel = self.mean_module, self.covar_module
        if type(kernel) is not FeatureKernel or kernel.active_dims is not None:
            return mean(X), kernel, X
        z = kernel.network(X)
        shared = isinstance(mean, FeatureMean) and mean.network is kernel.network
        return mean.of_features(z) if shared else mean(X), kernel.base_kernel, z

    def nll(
        self, X: Tensor, Y: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Evaluates the negative log marginal likelihood of each task.

        Args:
            X: A ``... x n x d`` tensor of inputs.
            Y: A ``... x n`` tensor of outcomes.
            mask: A ``... x n`` boolean tensor, ``False`` for padding.
            noise: Noise variances that expand to ``... x n``; the GP's own if omitted.

        Returns:
            A ``...`` tensor, one value a task, differentiable in the parameters.
        """
        noise = self.noise if noise is None else noise
        mean, kernel, x = self._on_features(X)
        return nll(mean, dense_covariance(kernel, x), Y, mask, noise)


def structure(module: Module) -> list[str]:
    """Describes means and kernels without their parameters: classes, and settings such as ``nu``.

    Args:
        module: The module that holds them.

    Returns:
        A line for each mean and kernel. Private attributes are left out.
    """
    parts = module.named_modules()
    return [f"{name}: {_settings(part)}" for name, part in parts if isinstance(part, Mean | Kernel)]


def _settings(module: Module) -> str:
    plain = {
        name: value
        for name, value in sorted(vars(module).items())
        if isinstance(value, bool | int | float | str)
        and not name.startswith("_")
        and name != "training"
    }
    return f"{type(module).__qualname__} {plain}"


def spread(module: Module, batch_shape: torch.Size) -> None:
    """Gives each member of a batched model parameters of its own, with the same values.

    Args:
        module: The module, changed in place; its parameters have no batch shape yet.
        batch_shape: The batch shape of the model.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.expand(batch_shape + parameter.shape).clone()
    for part in module.modules():
        if isinstance(part, Kernel):
            part._batch_shape = batch_shape + part._batch_shape


def scaled_stationary(dim: int, kernel: str, lengthscale: float | None = None) -> ScaleKernel:
    """Builds a scaled stationary kernel with a lengthscale for each input or feature.

    Args:
        dim: The number of inputs or features.
        kernel: The stationary kernel's name.
        lengthscale: The starting value; by default half the root of ``dim``, because distances
            between features grow with the root of their number.

    Returns:
        The kernel, in double precision.
    """
    base = stationary_function(kernel).make_kernel(ard_num_dims=dim).double()
    base.lengthscale = math.sqrt(dim) / 2 if lengthscale is None else lengthscale
    scaled = ScaleKernel(base).double()
    scaled.outputscale = 1.0
    return scaled
