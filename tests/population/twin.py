"""The hierarchical GP over the sources, written down from its formulas.

One dense GP of the rows of all tasks and the target, for each of the scales of the target, of
either sign, and each variance of its level. Nothing is padded, thinned out or kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from botorch_transfer.population.model import ELSEWHERE, FAR, INVERTED
from botorch_transfer.population.prior import _LEVEL_STD, _SCALE_STD, SourcePopulation
from tests.gp.padded import plain_kernel

LEVEL_VARIANCE = 0.09


@dataclass(frozen=True)
class Sources:
    """The rows of all tasks, standardized task by task, and the hyperparameters."""

    X: Tensor
    y: Tensor
    task: Tensor
    noise: Tensor
    found: Any
    kernel: str

    @classmethod
    def of(cls, prior: SourcePopulation) -> Sources:
        """Reads the data and the hyperparameters of a prior."""
        data = prior.observed
        return cls(data.X, data.Y, data.task, data.noise, prior.hyperparameters, prior.gps.kernel)

    def common(self, A: Tensor, B: Tensor) -> Tensor:
        scaled = A / self.found.lengthscale, B / self.found.lengthscale
        return self.found.outputscale * plain_kernel(self.kernel, *scaled)

    def own(self, A: Tensor, B: Tensor) -> Tensor:
        """That of ``h - Σ_r h(x_r) / R``, as the covariance of a linear map of ``h``."""
        R = self.reference()
        together = torch.cat([A, B, R])
        scaled = together / self.found.own_lengthscale
        K = self.found.own_outputscale * plain_kernel(self.kernel, scaled, scaled)
        eye = torch.eye(len(together)).to(K)
        minus_mean = eye - eye[-len(R) :].mean(dim=0)
        return (minus_mean @ K @ minus_mean.mT)[: len(A), len(A) : len(A) + len(B)]

    def reference(self) -> Tensor:
        """At most 64 of the different inputs, sorted and evenly spaced."""
        ordered = torch.tensor(sorted(set(map(tuple, self.X.tolist())))).to(self.X)
        return ordered[torch.linspace(0, len(ordered) - 1, min(64, len(ordered))).round().long()]

    def covariance(self) -> Tensor:
        """That of the rows."""
        same = self.task.unsqueeze(-1) == self.task
        own = self.own(self.X, self.X) + LEVEL_VARIANCE
        return self.common(self.X, self.X) + torch.where(same, own, 0.0) + self.noise.diag()

    def posterior(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """Mean at ``A`` and covariance between ``A`` and ``B`` of what all tasks share."""
        K = self.covariance()
        mean = self.common(A, self.X) @ torch.linalg.solve(K, self.y)
        explained = self.common(A, self.X) @ torch.linalg.solve(K, self.common(self.X, B))
        return mean, self.common(A, B) - explained

    def log_density(self) -> Tensor:
        return _log_density(self.y, self.covariance())


def _log_density(y: Tensor, covariance: Tensor) -> Tensor:
    return MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


@dataclass(frozen=True)
class Units:
    """What the sources say of a target's level and scale, from their outcomes as they came."""

    level: float
    scale: float
    log_std: float
    level_variance: float

    @classmethod
    def of(cls, data: list[tuple[Tensor, ...]]) -> Units:
        means = [float(Y.mean()) for _, Y, *_ in data]
        stds = [float(Y.std()) if len(Y) > 1 else 0.0 for _, Y, *_ in data]
        logs = [math.log(std) for std in stds if std > 1e-8]
        middle = sum(logs) / len(logs) if logs else 0.0
        level, scale = sum(means) / len(means), math.exp(middle)
        squares = sum((each - middle) ** 2 for each in logs)
        deviations = sum(((mean - level) / scale) ** 2 for mean in means)
        return cls(
            level=level,
            scale=scale,
            log_std=math.sqrt((2 * _SCALE_STD**2 + squares) / (2 + len(logs))),
            level_variance=(2 * _LEVEL_STD**2 + deviations) / (2 + len(means)),
        )


@dataclass(frozen=True)
class Twin:
    """The target's GP.

    Args:
        sources: The source tasks.
        units: The scales and levels of the source tasks.
        X: An ``n x d`` tensor of target inputs.
        Y: An ``n`` tensor of target outcomes in the user's units.
        noise: Known noise variances in the user's units; inferred if ``None``.
    """

    sources: Sources
    units: Units
    X: Tensor
    Y: Tensor
    noise: Tensor | None = None

    @property
    def y(self) -> Tensor:
        return (self.Y - self.units.level) / self.units.scale

    def target_noise(self, square: Tensor) -> Tensor:
        if self.noise is None:
            return (square * self.sources.found.noise).expand(len(self.Y))
        return self.noise / self.units.scale**2

    def cases(self) -> list[tuple[float, float, float]]:
        """Each scale and level variance with its log weight before the target is seen."""
        usual, cases = self.units.level_variance, []
        for sign, odds in ((1, 1 - INVERTED), (-1, INVERTED)):
            for level, of_level in ((usual, 1 - ELSEWHERE), (FAR**2 * max(1.0, usual), ELSEWHERE)):
                for index in range(9):
                    step = -2.5 + 0.625 * index
                    log_weight = math.log(odds) + math.log(of_level) - 0.5 * step**2
                    cases.append((sign * math.exp(self.units.log_std * step), level, log_weight))
        return cases

    def log_density(self, b: float, level: float) -> Tensor:
        """``log p(target | sources, b)``, as the joint density over that of the sources."""
        own, X = self.sources, self.X
        cross = b * own.common(own.X, X)
        target = b**2 * (own.common(X, X) + own.own(X, X)) + level
        target = target + self.target_noise(torch.tensor(b**2).to(self.y)).diag()
        rows = torch.cat([own.covariance(), cross], dim=-1), torch.cat([cross.mT, target], dim=-1)
        return _log_density(torch.cat([own.y, self.y]), torch.cat(rows)) - own.log_density()

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """``E[b]``, ``E[b²]``, and the level variance that is more probable."""
        scales, levels, log_weights = torch.tensor(self.cases(), dtype=torch.double).unbind(dim=-1)
        if len(self.Y):
            evidence = [self.log_density(b, level) for b, level, _ in self.cases()]
            log_weights = log_weights + torch.stack(evidence)
        weights = log_weights.softmax(dim=-1)
        far = weights[levels == levels.max()].sum() > 0.5
        level = levels.max() if far else levels.min()
        return (weights * scales).sum(), (weights * scales**2).sum(), level

    def prior(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """The target's mean at ``A``, and its covariance between ``A`` and ``B``."""
        first, second, level = self.moments()
        mean, covariance = self.sources.posterior(A, B)
        other, _ = self.sources.posterior(B, B)
        covariance = second * (covariance + self.sources.own(A, B))
        covariance = covariance + (second - first**2) * torch.outer(mean, other)
        return first * mean, covariance + level

    def posterior(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and joint covariance in the user's units."""
        mean, covariance = self.prior(A, A)
        if len(self.Y):
            train_mean, gram = self.prior(self.X, self.X)
            gram = gram + self.target_noise(self.moments()[1]).diag()
            _, cross = self.prior(A, self.X)
            mean = mean + cross @ torch.linalg.solve(gram, self.y - train_mean)
            covariance = covariance - cross @ torch.linalg.solve(gram, cross.mT)
        scale = self.units.scale
        return self.units.level + scale * mean, scale**2 * covariance

    def predictive_noise(self) -> Tensor:
        """The noise variance of a further evaluation, in the user's units."""
        return self.units.scale**2 * self.moments()[1] * self.sources.found.noise


def twin_of(
    prior: SourcePopulation,
    data: list[tuple[Tensor, ...]],
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None = None,
) -> Twin:
    """Reads the hyperparameters of a prior, and everything else from the data."""
    noise = None if Yvar is None else Yvar.squeeze(-1)
    sources = Sources.of(prior)
    return Twin(sources, Units.of(data), X, Y.squeeze(-1), noise)
