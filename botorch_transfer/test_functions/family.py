"""Families of synthetic tasks: test functions of BoTorch's kind with parameters to draw."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from scipy.optimize import minimize
from torch import Tensor
from torch.quasirandom import SobolEngine

NUM_RAW, NUM_STARTS = 2048, 16
SAME_VALUE, SAME_POINT = 1e-6, 1e-3
"""Relative to the values' spread, and to the sides of the box."""


class TaskFamily(SyntheticTestFunction):
    """One task of a family of related test functions.

    The class is the family, an object is one task of it. A subclass gives the intervals that its
    parameters are drawn from. No formula gives the optimum of a drawn task, so it is searched for
    when it is first asked for.

    Args:
        noise_std: The standard deviation of the observation noise.
        negate: Whether to negate the function, so that it is to be maximized.
        bounds: Other bounds than the family's, as pairs of a lower and an upper one.
        dtype: The dtype of the bounds.

    Example:
        >>> from botorch_transfer.test_functions import ForresterFamily
        >>> target, sources = ForresterFamily.sample_problem(num_sources=2, seed=0, negate=True)
        >>> history = {name: task.sample_data(20, seed=1) for name, task in sources.items()}
        >>> SourceGPs.fit(history, num_restarts=0).task_names
        ('source 0', 'source 1')
    """

    study_noise_std: ClassVar[float]
    """The standard deviation of the observation noise in studies: the papers', if there is one."""
    _ranges: ClassVar[dict[str, tuple[float, float]]]
    """The interval that each parameter is drawn from, uniformly."""

    def __init__(
        self,
        noise_std: float | None = None,
        negate: bool = False,
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.continuous_inds = list(range(self.dim))
        super().__init__(noise_std=noise_std, negate=negate, bounds=bounds, dtype=dtype)

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

    @classmethod
    def sample_problem(
        cls, num_sources: int, seed: int, **options: Any
    ) -> tuple[Self, dict[str, Self]]:
        """Draws what one run of the papers' studies needs.

        Args:
            num_sources: The number of source tasks.
            seed: The seed.
            **options: Further arguments of the constructor, as ``negate``.

        Returns:
            The target task, and the source tasks by name.
        """
        target, *sources = cls.sample(num_sources + 1, seed, **options)
        return target, {f"source {number}": task for number, task in enumerate(sources)}

    def sample_data(self, num_points: int, seed: int) -> tuple[Tensor, Tensor]:
        """Evaluates the task at points drawn uniformly: source data for a model.

        Args:
            num_points: The number of points ``n``.
            seed: The seed of points and noise; the global generator is left alone.

        Returns:
            Inputs scaled to the unit cube, ``n x d``, and outcomes, ``n x 1``, noisy if the task
            is, and negated if the task is.
        """
        generator = torch.Generator().manual_seed(seed)
        bounds = cast(Tensor, self.bounds)
        unit = torch.rand(num_points, self.dim, generator=generator, dtype=torch.double).to(bounds)
        values = self._evaluate_true(bounds[0] + (bounds[1] - bounds[0]) * unit)
        if self.noise_std is not None:
            error = torch.randn(num_points, generator=generator, dtype=torch.double)
            values = values + cast(float, self.noise_std) * error.to(bounds)
        return unit, (-values if self.negate else values).unsqueeze(-1)

    @property
    def _optimal_value(self) -> float:  # type: ignore[override]  # read by `optimal_value`
        return self._minima[1]

    @property
    def optimizers(self) -> Tensor:
        """A ``k x d`` tensor of the points where the best value is reached, as far as found."""
        return self._minima[0].to(cast(Tensor, self.bounds))

    @cached_property
    def _minima(self) -> tuple[Tensor, float]:
        """The minimizers and the least value, by gradients from the best of many points."""
        lower, upper = cast(Tensor, self.bounds).double().cpu()
        sobol = SobolEngine(self.dim, scramble=True, seed=0).draw(NUM_RAW, dtype=torch.double)
        X = lower + (upper - lower) * sobol
        with torch.no_grad():
            values = self._evaluate_true(X)
        guesses = self._guesses().to(X).clamp(lower, upper)
        starts = torch.cat([guesses, X[values.argsort()[:NUM_STARTS]]])
        box = list(zip(lower.tolist(), upper.tolist(), strict=True))
        found = [
            minimize(self._value_and_gradient, x.numpy(), jac=True, bounds=box) for x in starts
        ]
        least = min(float(result.fun) for result in found)
        tolerance = SAME_VALUE * float(values.std())
        best = np.array([result.x for result in found if result.fun <= least + tolerance])
        return _distinct(torch.from_numpy(best), SAME_POINT * (upper - lower)), least

    def _value_and_gradient(self, x: Any) -> tuple[float, Any]:
        point = torch.tensor(x, dtype=torch.double, requires_grad=True)
        value = self._evaluate_true(point)
        (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient.numpy()

    def _guesses(self) -> Tensor:
        """Points that the search for the optimum starts from in any case, ``k x d``."""
        return torch.empty(0, self.dim)


def _distinct(X: Tensor, tolerance: Tensor) -> Tensor:
    """The rows of ``X`` without those that are near an earlier one."""
    kept: list[Tensor] = []
    for x in X:
        if all(bool(((x - other).abs() > tolerance).any()) for other in kept):
            kept.append(x)
    return torch.stack(kept)
