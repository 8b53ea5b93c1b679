"""Random source tasks with hyperparameters, and their GPs by the plain formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_transfer.gp.conditioned import ConditionedBatch, ConditionedGPs

KERNELS = ("rbf", "matern12", "matern32", "matern52")


def plain_kernel(name: str, A: Tensor, B: Tensor) -> Tensor:
    """A unit-variance kernel from all pairs of differences of scaled inputs."""
    squares = (A.unsqueeze(-2) - B.unsqueeze(-3)).square().sum(dim=-1)
    if name == "rbf":  # without the root, which has no derivative at zero
        return torch.exp(-0.5 * squares)
    r = squares.sqrt()
    s3, s5 = math.sqrt(3) * r, math.sqrt(5) * r
    return {
        "matern12": torch.exp(-r),
        "matern32": (1 + s3) * torch.exp(-s3),
        "matern52": (1 + s5 + s5**2 / 3) * torch.exp(-s5),
    }[name]


@dataclass(frozen=True)
class Task:
    """One task's data (``n x d``, ``n``, ``n``) and hyperparameters (``d``, scalars)."""

    X: Tensor
    Y: Tensor
    noise: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    mean: Tensor
    kernel: str

    @classmethod
    def draw(cls, n: int, dim: int, kernel: str, generator: torch.Generator) -> Task:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.double)

        X = uniform(n, dim)
        return cls(
            X=X,
            Y=torch.sin(4 * X.sum(dim=-1)) + uniform(n),
            noise=1e-3 + 0.1 * uniform(n),
            lengthscale=0.2 + uniform(dim),
            outputscale=0.5 + uniform(1)[0],
            mean=uniform(1)[0],
            kernel=kernel,
        )

    def prior(self, A: Tensor, B: Tensor) -> Tensor:
        scaled = A / self.lengthscale, B / self.lengthscale
        return self.outputscale * plain_kernel(self.kernel, *scaled)

    def _solve(self, right: Tensor) -> Tensor:
        return torch.linalg.solve(self.prior(self.X, self.X) + self.noise.diag(), right)

    def posterior_mean(self, A: Tensor) -> Tensor:
        residual = self._solve((self.Y - self.mean).unsqueeze(-1))
        return self.mean + (self.prior(A, self.X) @ residual).squeeze(-1)

    def posterior_covariance(self, A: Tensor, B: Tensor) -> Tensor:
        return self.prior(A, B) - self.prior(A, self.X) @ self._solve(self.prior(self.X, B))


def draw_tasks(sizes: Sequence[int], dim: int, kernel: str = "rbf", seed: int = 0) -> list[Task]:
    """Draws tasks of these sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [Task.draw(n, dim, kernel, generator) for n in sizes]


def condition(
    tasks: Sequence[Task],
    num_rows: int | None = None,
    filling: float = 0.0,
    shuffle: bool = False,
    max_inducing: int | None = None,
) -> ConditionedGPs:
    """Pads the tasks to a batch of GPs.

    Args:
        tasks: The tasks.
        num_rows: The number of rows ``N``; that of the largest task by default.
        filling: What the padding holds.
        shuffle: Whether the padding lies among the data instead of behind them.
        max_inducing: See ``from_data``.
    """
    generator = torch.Generator().manual_seed(0)
    num_rows = num_rows or max(len(task.X) for task in tasks)
    mask = torch.zeros(len(tasks), num_rows, dtype=torch.bool)
    padded = {name: torch.full(mask.shape, filling).double() for name in ("Y", "noise")}
    padded["X"] = torch.full((*mask.shape, tasks[0].X.shape[-1]), filling).double()
    for index, task in enumerate(tasks):
        rows = torch.arange(len(task.X))
        if shuffle:
            rows = torch.randperm(num_rows, generator=generator)[: len(task.X)].sort().values
        mask[index, rows] = True
        for name, values in padded.items():
            values[index, rows] = getattr(task, name)
    return ConditionedGPs.from_data(
        train_X=padded["X"],
        train_Y=padded["Y"],
        mask=mask,
        noise=padded["noise"],
        lengthscale=torch.stack([task.lengthscale for task in tasks]),
        outputscale=torch.stack([task.outputscale for task in tasks]),
        prior_mean=torch.stack([task.mean for task in tasks]),
        kernel=tasks[0].kernel,
        task_names=[f"task {index}" for index in range(len(tasks))],
        max_inducing=max_inducing,
    )


def check_draws(gps: ConditionedBatch, A: Tensor) -> None:
    """Draws corrected by coefficients have the covariance of the posterior, for one dense prior."""
    torch.manual_seed(0)
    Z = gps.points if gps.points.dim() == 3 else gps.points.unsqueeze(0)
    together = torch.cat([A.expand(len(Z), *A.shape), Z], dim=-2)
    root = torch.linalg.cholesky(
        gps.stationary.between(together, together) + 1e-10 * torch.eye(together.shape[-2]).double()
    )
    values = (root @ torch.randn(*root.shape[:-1], 60_000).double()).movedim(-1, 0)
    at_A, at_Z = values.split([len(A), Z.shape[-2]], dim=-1)
    draws = at_A - (gps.cross(A) @ gps.draw_coefficients(at_Z).unsqueeze(-1)).squeeze(-1)
    for index, expected in enumerate(gps.covariance(A)):
        found = torch.cov(draws[:, index].mT)
        torch.testing.assert_close(found, expected, atol=0.02 * float(expected.max()), rtol=0)


def points(*shape: int, seed: int = 1) -> Tensor:
    """Draws inputs from the unit cube."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
