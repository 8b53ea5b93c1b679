"""The parts of a GP that pre-training learns together: mean, kernel and noise."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor
from torch.nn import Module, Parameter

from botorch_transfer.kernels.dense import Stationary, dense_covariance
from botorch_transfer.kernels.features import FeatureKernel
from botorch_transfer.means.features import FeatureMean
from botorch_transfer.pretraining.objectives import nll
from botorch_transfer.pretraining.stationary_nll import stationary_nll

logger = logging.getLogger(__name__)

MIN_NOISE = 1e-6
"""The least noise variance, in the prior's units: standardized outcomes by default."""


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
        # One that stayed would shift the marginal likelihood of every model of the prior.
        for module in self.modules():
            hyperpriors = getattr(module, "_priors", None)
            if hyperpriors:
                logger.info(
                    "Pre-training ignores the hyperpriors %s of %s.",
                    sorted(hyperpriors),
                    type(module).__name__,
                )
                for name in list(hyperpriors):
                    del module._modules[name], hyperpriors[name]

    @property
    def noise(self) -> Tensor:
        """The noise variance, a tensor with one element."""
        return self.likelihood.noise

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates mean and covariance, noise left out.

        Args:
            X: A ``... x n x d`` tensor of inputs.

        Returns:
            A ``... x n`` and a ``... x n x n`` tensor; features that both read are computed once.
        """
        mean, kernel, x = self._on_features(X)
        return mean, dense_covariance(kernel, x)

    def _on_features(self, X: Tensor) -> tuple[Tensor, Kernel, Tensor]:
        """The mean, and a kernel with what it is to read: features, if it is one of features."""
        mean, kernel = self.mean_module, self.covar_module
        if type(kernel) is not FeatureKernel or kernel.active_dims is not None:
            return mean(X), kernel, X
        z = kernel.network(X)
        shared = isinstance(mean, FeatureMean) and mean.network is kernel.network
        return mean.of_features(z) if shared else mean(X), kernel.base_kernel, z

    def nll(
        self, X: Tensor, Y: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Evaluates the negative log marginal likelihood of each task, as :func:`.objectives.nll`.

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
        stationary = Stationary.of(kernel)
        if stationary is not None:
            return stationary_nll(mean, x, stationary, noise, Y, mask)
        return nll(mean, dense_covariance(kernel, x), Y, mask, noise)


def structure(module: Module) -> list[str]:
    """Says what means and kernels are, besides their parameters: classes, and settings as ``nu``.

    Args:
        module: The module that holds them.

    Returns:
        A line each for them and their parts; nothing in it is GPyTorch's own business.
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


def freeze(module: Module) -> dict[str, bool]:
    """Turns a module's parameters into buffers: nothing is left to fit, and views can share them.

    Args:
        module: The module, changed in place.

    Returns:
        The names of what were parameters, and whether each was one to fit. A name that leads to a
        module registered twice is listed once.
    """
    trainable = {}
    detached: dict[int, Tensor] = {}  # one of two tied parameters is the other
    for name, owner, leaf in _owners(module, list(_parameter_names(module))):
        parameter = owner._parameters.pop(leaf, None)
        if parameter is not None:
            trainable[name] = parameter.requires_grad
            owner._buffers[leaf] = detached.setdefault(id(parameter), parameter.detach())
    return trainable


def thaw(module: Module, trainable: dict[str, bool], fit: bool = True) -> None:
    """Turns buffers back into parameters.

    Args:
        module: The module, changed in place.
        trainable: What :func:`freeze` returned.
        fit: Whether the parameters that were to be fitted are so again.
    """
    tied: dict[int, Parameter] = {}
    for name, owner, leaf in _owners(module, list(trainable)):
        buffer = owner._buffers.pop(leaf)
        assert buffer is not None
        parameter = tied.setdefault(id(buffer), Parameter(buffer, fit and trainable[name]))
        owner._parameters[leaf] = parameter


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


def _parameter_names(module: Module) -> Iterator[str]:
    return (name for name, _ in module.named_parameters(remove_duplicate=False))


def _owners(module: Module, names: list[str]) -> Iterator[tuple[str, Module, str]]:
    for name in names:
        path, _, leaf = name.rpartition(".")
        yield name, module.get_submodule(path), leaf
