r"""The Alpine family.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from botorch_transfer.test_functions.family import TaskFamily


class AlpineFamily(TaskFamily):
    r"""A task of the Alpine family, App. C.1 (Eq. 39) of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = x sin(x + π + s) + c x

    on ``[-10, 10]``, to be minimized. In the paper's studies, the target has no shift ``s``, and
    the sources have the five of ``SHIFTS``; all have the slope ``c = 0.1``. Its Fig. 1 draws
    another family, of slopes ``±1/2`` without shifts.

    Args:
        s: The shift; that of the target by default.
        c: The slope.
        noise_std: The standard deviation of the observation noise; 0.1 in the paper.
        negate: Whether to negate the function, so that it is to be maximized.
        bounds: Other bounds than the family's.
        dtype: The dtype of the bounds.

    Example:
        >>> target, sources = AlpineFamily.sample_problem(5, seed=0)
        >>> [round(12 * task.s / torch.pi) for task in (target, *sources.values())]
        [0, 1, 2, 3, 4, 5]
    """

    SHIFTS: ClassVar[tuple[float, ...]] = tuple(k * math.pi / 12 for k in range(1, 6))
    """The sources' shifts."""

    dim = 1
    continuous_inds = [0]  # noqa: RUF012
    study_noise_std = 0.1
    _bounds = [(-10.0, 10.0)]  # noqa: RUF012
    _check_grad_at_opt = False

    def __init__(
        self,
        s: float = 0.0,
        c: float = 0.1,
        noise_std: float | None = None,
        negate: bool = False,
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.s, self.c = s, c
        super().__init__(noise_std=noise_std, negate=negate, bounds=bounds, dtype=dtype)

    @classmethod
    def sample(cls, num_tasks: int, seed: int, **options: Any) -> list[Self]:
        """Draws source tasks, no two of them alike.

        Args:
            num_tasks: Their number, at most five.
            seed: The seed; the first tasks are the same whatever their number.
            **options: Further arguments of the constructor, as ``negate``.

        Returns:
            The tasks.

        Raises:
            ValueError: If more than five tasks are asked for.
        """
        if num_tasks > len(cls.SHIFTS):
            raise ValueError(
                f"The Alpine family has {len(cls.SHIFTS)} source tasks, not {num_tasks}: make "
                "others by AlpineFamily(s=...)."
            )
        order = torch.randperm(len(cls.SHIFTS), generator=torch.Generator().manual_seed(seed))
        return [cls(s=cls.SHIFTS[k], **options) for k in order[:num_tasks].tolist()]

    @classmethod
    def sample_problem(
        cls, num_sources: int, seed: int, **options: Any
    ) -> tuple[Self, dict[str, Self]]:
        """The target of the paper's studies, and some of its sources.

        Args:
            num_sources: The number of source tasks, at most five.
            seed: The seed that decides which ones.
            **options: Further arguments of the constructor, as ``negate``.

        Returns:
            The target, always the same, and the sources by name, in the order of their shifts.
        """
        sources = sorted(cls.sample(num_sources, seed, **options), key=lambda task: task.s)
        named = {f"shift {12 * task.s / math.pi:.0f} pi/12": task for task in sources}
        return cls(**options), named

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x = X.squeeze(-1)
        return x * (x + math.pi + self.s).sin() + self.c * x
