"""The hierarchical models written down from their formulas: level by level, dense, nothing kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_transfer.gp.tasks import TaskUnits
from botorch_transfer.hierarchy.models import HierarchicalGP
from botorch_transfer.hierarchy.prior import (
    BoostedHierarchy,
    ConditionedHierarchy,
    Propagate,
    SourceHierarchy,
)
from botorch_transfer.prior import Observations
from tests.gp.padded import Task, draw_tasks, points

#: Ragged sizes of 1, 2 and 5 source tasks.
SIZES = ((7,), (6, 4), (5, 1, 7, 3, 6))


@dataclass(frozen=True)
class Process:
    """A function's distribution: its mean and its covariance."""

    mean: Callable[[Tensor], Tensor]
    covariance: Callable[[Tensor, Tensor], Tensor]

    def at(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the joint covariance at ``n x d`` inputs."""
        return self.mean(A), self.covariance(A, A)


Step = Callable[[Process, Task], Process]


NOTHING = Process(lambda A: A[:, 0] * 0, lambda A, B: A[:, :1] * 0 + B[:, 0] * 0)


def sequential(below: Process, level: Task) -> Process:
    """SHGP: a GP with the mean of the level below, and its covariance added to the kernel."""
    return _condition(
        lambda A: below.mean(A) + level.mean,
        lambda A, B: below.covariance(A, B) + level.prior(A, B),
        level,
    )


def means_only(below: Process, level: Task) -> Process:
    """MHGP: a GP with the mean of the level below."""
    return _condition(lambda A: below.mean(A) + level.mean, level.prior, level)


def boosted(below: Process, level: Task) -> Process:
    """BHGP: MHGP with ``Cov[f(x) - A(x) f(X)]`` added, ``f`` the level below."""
    own, X, C = means_only(below, level), level.X, below.covariance

    def covariance(A: Tensor, B: Tensor) -> Tensor:
        gram = level.prior(X, X) + level.noise.diag()
        left, right = (torch.linalg.solve(gram, level.prior(X, at)).mT for at in (A, B))
        boost = C(A, B) + left @ C(X, X) @ right.mT - left @ C(X, B) - C(A, X) @ right.mT
        return own.covariance(A, B) + boost

    return Process(own.mean, covariance)


def climb(step: Step, levels: Sequence[Task]) -> Process:
    """The last level's process, by recursion from the first."""
    process = NOTHING
    for level in levels:
        process = step(process, level)
    return process


def joint(levels: Sequence[Task]) -> Process:
    """HGP: one GP over the data of all levels, by the coregionalization formula."""
    last = len(levels) - 1

    def prior(i: int, A: Tensor, j: int, B: Tensor) -> Tensor:
        return sum(level.prior(A, B) for level in levels[: min(i, j) + 1])

    def mean(i: int, A: Tensor) -> Tensor:
        return A[:, 0] * 0 + sum(level.mean for level in levels[: i + 1])

    gram = torch.cat(
        [
            torch.cat([prior(i, a.X, j, b.X) for j, b in enumerate(levels)], dim=1)
            for i, a in enumerate(levels)
        ]
    )
    gram = gram + torch.cat([level.noise for level in levels]).diag()
    residual = torch.cat([level.Y - mean(i, level.X) for i, level in enumerate(levels)])

    def cross(A: Tensor) -> Tensor:
        return torch.cat([prior(last, A, i, level.X) for i, level in enumerate(levels)], dim=1)

    return Process(
        lambda A: mean(last, A) + cross(A) @ torch.linalg.solve(gram, residual),
        lambda A, B: prior(last, A, last, B) - cross(A) @ torch.linalg.solve(gram, cross(B).mT),
    )


def _condition(
    mean: Callable[[Tensor], Tensor], kernel: Callable[[Tensor, Tensor], Tensor], level: Task
) -> Process:
    X, gram = level.X, kernel(level.X, level.X) + level.noise.diag()
    coefficients = torch.linalg.solve(gram, level.Y - mean(X))
    return Process(
        lambda A: mean(A) + kernel(A, X) @ coefficients,
        lambda A, B: kernel(A, B) - kernel(A, X) @ torch.linalg.solve(gram, kernel(X, B)),
    )


def stacked(levels: Sequence[Task]) -> Observations:
    """The data of all levels."""
    parts = [torch.cat([getattr(t, name) for t in levels]) for name in ("X", "Y", "noise")]
    sizes = torch.tensor([len(level.Y) for level in levels])
    return Observations(*parts, torch.arange(len(levels)).repeat_interleave(sizes))


def stack(levels: Sequence[Task], propagate: Propagate) -> ConditionedHierarchy:
    """The conditioned hierarchy under test, of the same levels."""
    hierarchy = ConditionedHierarchy if propagate == "covariance" else BoostedHierarchy
    return hierarchy.from_data(
        stacked(levels),
        lengthscale=torch.stack([level.lengthscale for level in levels]),
        outputscale=torch.stack([level.outputscale for level in levels]),
        level_means=torch.stack([level.mean for level in levels]),
        kernel=levels[0].kernel,
    )


def prior_of(levels: Sequence[Task], propagate: Propagate) -> SourceHierarchy:
    """A prior of the same levels, in raw units."""
    gps = stack(levels, propagate)
    zeros, names = torch.zeros_like(gps.outputscale), [f"level {i}" for i in range(len(levels))]
    return SourceHierarchy(gps, TaskUnits(names, zeros, zeros + 1, "raw"), stacked(levels))


def levels_of(prior: SourceHierarchy) -> list[Task]:
    """Reads a prior's levels, in its units."""
    gps, data = prior.gps, prior.observed
    return [
        Task(
            X=data.X[data.task == level],
            Y=data.Y[data.task == level],
            noise=data.noise[data.task == level],
            lengthscale=gps.lengthscale[level],
            outputscale=gps.outputscale[level],
            mean=gps.level_means[level],
            kernel=gps.kernel,
        )
        for level in range(prior.num_tasks)
    ]


def target_of(model: HierarchicalGP, **changed: Any) -> Task:
    """Reads a model's target, the last level, in the prior's units."""
    model.eval()
    (X,), residual = model.train_inputs, model.residual_covar_module
    values = {
        "X": X,
        "Y": model.train_targets,
        "noise": model.likelihood.noise.detach().expand(len(X)),
        "lengthscale": residual.base_kernel.lengthscale.detach().squeeze(-2),
        "outputscale": residual.outputscale.detach(),
        "mean": torch.zeros((), dtype=X.dtype),
        "kernel": "rbf",
        **changed,
    }
    return Task(**values)


def predict(model: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A model's mean and covariance as a function of the inputs."""

    def function(A: Tensor) -> tuple[Tensor, Tensor]:
        posterior = model.posterior(A)
        return posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix

    return function


def moments_and_gradient(
    moments: Callable[[Tensor], tuple[Tensor, Tensor]], A: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the covariance, and the gradient in the inputs of a mixture of them all."""
    A = A.clone().requires_grad_(True)
    mean, covariance = moments(A)
    weights = torch.linspace(-1.0, 2.0, covariance.numel()).to(covariance).view_as(covariance)
    (gradient,) = torch.autograd.grad(mean.square().sum() + (weights * covariance).sum(), A)
    return mean.detach(), covariance.detach(), gradient


def draw_model(
    model_class: type[HierarchicalGP],
    sizes: tuple[int, ...],
    num_points: int,
    noise: Tensor | None = None,
) -> tuple[HierarchicalGP, list[Task]]:
    """Draws a model and its levels, with a residual kernel unlike any default."""
    levels = draw_tasks(sizes, 2)
    X = points(num_points, 2, seed=3)
    prior = prior_of(levels, model_class.propagate)
    model = model_class(X, (3 * X).sin().sum(-1, keepdim=True), prior, noise)
    model.residual_covar_module.initialize(outputscale=0.4)
    model.residual_covar_module.base_kernel.lengthscale = torch.tensor([[0.5, 0.8]])
    return model.eval(), levels
