"""Families of synthetic tasks: test functions of BoTorch's kind with parameters to draw."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from botorch.test_functions.base import BaseTestProblem
from scipy.optimize import minimize
from torch import Tensor
from torch.quasirandom import SobolEngine

NUM_RAW, NUM_STARTS = 2048, 8


class TaskFamily(BaseTestProblem):
    """One task of a family of related test functions.

    The class is the family, an object is a task. Subclasses say where their parameters come from.

    Args:
        noise_std: The standard deviation of the observation noise.
        negate: Whether to negate the function.
        dtype: The dtype of the bounds.
    """

    num_objectives: int = 1
    _ranges: ClassVar[dict[str, tuple[float, float]]]
    """The interval that each parameter is drawn from, uniformly."""

    @classmethod
    def sample(cls, num_tasks: int, seed: int, **options: Any) -> list[Self]:
        """Draws tasks of the family.

        Args:
            num_tasks: Their number.
            seed: The seed; the first tasks are the same whatever their number.
            **options: Further arguments of the constructor, as ``negate``.

        Returns:
            The tasks.
        """
        generator = torch.Generator().manual_seed(seed)
        tasks = []
        for _ in range(num_tasks):
            draws = torch.rand(len(cls._ranges), generator=generator, dtype=torch.double).tolist()
            values = {
                name: low + (high - low) * draw
                for (name, (low, high)), draw in zip(cls._ranges.items(), draws, strict=True)
            }
            tasks.append(cls(**values, **options))
        return tasks

    @cached_property
    def _minimum(self) -> float:
        """The least value, by gradients from the best points of a Sobol sequence."""
        lower, upper = cast(Tensor, self.bounds).double().cpu()
        unit = SobolEngine(self.dim, scramble=True, seed=0).draw(NUM_RAW, dtype=torch.double)
        X = lower + (upper - lower) * unit
        starts = X[self._evaluate_true(X).argsort()[:NUM_STARTS]]

        def value_and_gradient(x: Any) -> tuple[float, Any]:
            point = torch.tensor(x, dtype=torch.double, requires_grad=True)
            value = self._evaluate_true(point)
            (gradient,) = torch.autograd.grad(value, point)
            return float(value.detach()), gradient.numpy()

        box = list(zip(lower.tolist(), upper.tolist(), strict=True))
        found = [minimize(value_and_gradient, x.numpy(), jac=True, bounds=box) for x in starts]
        return float(min(result.fun for result in found))

    @property
    def optimal_value(self) -> float:
        """The best value: the least one, or the largest one if the function is negated."""
        return -self._minimum if self.negate else self._minimum

    def _evaluate_true(self, X: Tensor) -> Tensor:
        raise NotImplementedError
