"""Synthetic source tasks: smooth random functions with a common part."""

import math

import torch
from torch import Tensor

NUM_FEATURES = 256
OWN_PART = 0.5
NOISE = 0.05

Task = tuple[Tensor, Tensor]


def random_tasks(num_tasks: int, num_points: int, dim: int, seed: int = 0) -> list[Task]:
    """Draws tasks: a common function plus a function of each task, with noise, at random points.

    Args:
        num_tasks: The number of tasks.
        num_points: The number of points `n` of each task.
        dim: The number of inputs `d`.
        seed: The seed. Calls with the same seed share the common function and the first tasks.

    Returns:
        Pairs of `X` (`n x d`) and standardized `Y` (`n x 1`) in double precision.
    """
    common = _RandomFunction(dim, torch.Generator().manual_seed(seed))
    tasks = []
    for number in range(num_tasks):
        generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + number)
        X = torch.rand(num_points, dim, generator=generator, dtype=torch.double)
        noise = torch.randn(num_points, generator=generator, dtype=torch.double)
        Y = common(X) + OWN_PART * _RandomFunction(dim, generator)(X) + NOISE * noise
        tasks.append((X, ((Y - Y.mean()) / Y.std()).unsqueeze(-1)))
    return tasks


class _RandomFunction:
    """A function drawn from a GP with an RBF kernel, by random Fourier features."""

    def __init__(self, dim: int, generator: torch.Generator) -> None:
        lengthscale = 0.3 + torch.rand(dim, 1, generator=generator, dtype=torch.double)
        normal = torch.randn(dim + 1, NUM_FEATURES, generator=generator, dtype=torch.double)
        self.frequencies, self.weights = normal[:-1] / lengthscale, normal[-1]
        phases = torch.rand(NUM_FEATURES, generator=generator, dtype=torch.double)
        self.phases = 2 * math.pi * phases

    def __call__(self, X: Tensor) -> Tensor:
        features = (X @ self.frequencies + self.phases).cos()
        return features @ self.weights * math.sqrt(2 / NUM_FEATURES)
