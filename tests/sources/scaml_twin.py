"""ScaML-GP written down from its formula: loops over tasks, dense solves, nothing kept."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_transfer.pretraining import SourceGPs
from botorch_transfer.sources.scaml import ScaMLGP
from tests.gp.padded import plain_kernel

KernelFunction = Callable[[Tensor, Tensor], Tensor]


def rbf(lengthscale: Tensor, outputscale: Tensor) -> KernelFunction:
    """The RBF kernel, from all pairs of differences."""

    def kernel(A: Tensor, B: Tensor) -> Tensor:
        return outputscale * plain_kernel("rbf", A / lengthscale, B / lengthscale)

    return kernel


@dataclass(frozen=True)
class Source:
    """One source GP with zero mean, conditioned on its own data."""

    X: Tensor
    y: Tensor
    noise: Tensor
    kernel: KernelFunction

    def _solve(self, right: Tensor) -> Tensor:
        return torch.linalg.solve(self.kernel(self.X, self.X) + torch.diag(self.noise), right)

    def mean(self, A: Tensor) -> Tensor:
        return self.kernel(A, self.X) @ self._solve(self.y)

    def covariance(self, A: Tensor, B: Tensor) -> Tensor:
        return self.kernel(A, B) - self.kernel(A, self.X) @ self._solve(self.kernel(self.X, B))


def sources_of(prior: SourceGPs) -> list[Source]:
    """Reads hyperparameters and data, task by task and without padding."""
    gps, data = prior.gps, prior.observed
    sources = []
    for task in range(prior.num_tasks):
        rows = data.task == task
        kernel = rbf(gps.lengthscale[task], gps.outputscale[task])
        sources.append(Source(data.X[rows], data.Y[rows], data.noise[rows], kernel))
    return sources


@dataclass(frozen=True)
class Twin:
    """The target's GP, in the prior's units.

    Args:
        sources: The source GPs.
        weights: An ``M`` tensor.
        residual: The residual kernel.
        noise: The target's noise variance, or one for each point.
        X: An ``n x d`` tensor of target inputs.
        y: An ``n`` tensor of target outcomes.
    """

    sources: Sequence[Source]
    weights: Tensor
    residual: KernelFunction
    noise: Tensor
    X: Tensor
    y: Tensor

    def prior_mean(self, A: Tensor) -> Tensor:
        return sum(w * s.mean(A) for w, s in zip(self.weights, self.sources, strict=True))

    def prior_covariance(self, A: Tensor, B: Tensor) -> Tensor:
        pairs = zip(self.weights, self.sources, strict=True)
        return self.residual(A, B) + sum(w**2 * s.covariance(A, B) for w, s in pairs)

    def _gram(self) -> Tensor:
        return self.prior_covariance(self.X, self.X) + torch.diag(self.noise.expand(len(self.X)))

    def posterior(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """The posterior mean (``n``) and covariance (``n x n``)."""
        mean, covariance = self.prior_mean(A), self.prior_covariance(A, A)
        if len(self.X) == 0:
            return mean, covariance
        cross, gram = self.prior_covariance(A, self.X), self._gram()
        mean = mean + cross @ torch.linalg.solve(gram, self.y - self.prior_mean(self.X))
        return mean, covariance - cross @ torch.linalg.solve(gram, cross.mT)

    def log_likelihood(self) -> Tensor:
        """The log marginal likelihood of the target's data."""
        difference, gram = self.y - self.prior_mean(self.X), self._gram()
        fit = difference @ torch.linalg.solve(gram, difference)
        return -0.5 * (fit + torch.logdet(gram) + len(self.X) * math.log(2 * math.pi))


def twin_of(model: ScaMLGP, **changed: Any) -> Twin:
    """Reads a model's hyperparameters, some of them changed, into a twin."""
    residual = model.residual_covar_module
    values = {
        "weights": model.weights,
        "lengthscale": residual.base_kernel.lengthscale.squeeze(-2),
        "outputscale": residual.outputscale,
        "noise": model.likelihood.noise,
        **changed,
    }
    return Twin(
        sources_of(model.prior),
        values["weights"],
        rbf(values["lengthscale"], values["outputscale"]),
        values["noise"],
        model.train_inputs[0],
        model.train_targets,
    )
