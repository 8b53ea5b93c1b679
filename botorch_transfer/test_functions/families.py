"""The families of synthetic tasks of the ScaML-GP and hierarchical GP papers.

Each class is a family: Alpine, Branin, Forrester, and Hartmann in three and six dimensions. An
object is one task of it. All functions are to be minimized; negate them for models.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
    arXiv:2312.00742.
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
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> target, sources = AlpineFamily.sample_problem(5, seed=0)
        >>> [round(12 * task.s / torch.pi) for task in (target, *sources.values())]
        [0, 1, 2, 3, 4, 5]
    """

    SHIFTS: ClassVar[tuple[float, ...]] = tuple(k * math.pi / 12 for k in range(1, 6))
    """The sources' shifts."""

    dim = 1
    study_noise_std = 0.1
    _bounds = [(-10.0, 10.0)]  # noqa: RUF012
    _check_grad_at_opt = False

    def __init__(self, s: float = 0.0, c: float = 0.1, **options: Any) -> None:
        self.s, self.c = s, c
        super().__init__(**options)

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


class BraninFamily(TaskFamily):
    r"""A task of the Branin family, App. C.1 of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = a (x_2 - b x_1² + c x_1 - r)² + s (1 - t) cos(x_1) + s

    on ``[-5, 10] x [0, 15]``, to be minimized. The paper's formula lacks the square. Parameters are
    uniform. They move the three basins, at ``x_1 = -π, π`` and ``3π``, which are all of the depth
    ``s t`` unless the edge ``x_2 = 0`` cuts the second or the third one off.

    Args:
        a: Between 0.5 and 1.5, as drawn by :meth:`sample`; by default Branin's own value.
        b: Between 0.1 and 0.15.
        c: Between 1 and 2.
        r: Between 5 and 7.
        s: Between 8 and 12.
        t: Between 0.03 and 0.05.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> source, target = BraninFamily.sample(2, seed=0, negate=True)
        >>> target(torch.tensor([[0.0, 5.0]], dtype=torch.double)).shape
        torch.Size([1])
    """

    dim = 2
    study_noise_std = 1.0
    _bounds = [(-5.0, 10.0), (0.0, 15.0)]  # noqa: RUF012
    _ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "a": (0.5, 1.5),
        "b": (0.1, 0.15),
        "c": (1.0, 2.0),
        "r": (5.0, 7.0),
        "s": (8.0, 12.0),
        "t": (0.03, 0.05),
    }

    def __init__(
        self,
        a: float = 1.0,
        b: float = 5.1 / (4 * torch.pi**2),
        c: float = 5 / torch.pi,
        r: float = 6.0,
        s: float = 10.0,
        t: float = 1 / (8 * torch.pi),
        **options: Any,
    ) -> None:
        self.a, self.b, self.c, self.r, self.s, self.t = a, b, c, r, s, t
        super().__init__(**options)

    def _guesses(self) -> Tensor:
        x1 = torch.pi * torch.tensor([-1.0, 1.0, 3.0], dtype=torch.double)
        return torch.stack([x1, self.b * x1.square() - self.c * x1 + self.r], dim=-1)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x1, x2 = X.unbind(dim=-1)
        valley = x2 - self.b * x1.square() + self.c * x1 - self.r
        return self.a * valley.square() + self.s * (1 - self.t) * x1.cos() + self.s


class ForresterFamily(TaskFamily):
    r"""A task of the Forrester family, App. C.1 (Eq. 37) of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = a (6 x - 2)² sin(12 x - 4) + b (x - 1/2) - c

    on ``[0, 1]``, to be minimized. Parameters are uniform. A steep slope ``b`` next to a small
    ``a`` moves the optimum from its basin at 0.76 towards the left edge.

    Args:
        a: Between 0.2 and 3, as drawn by :meth:`sample`; by default Forrester's own value.
        b: Between -5 and 15.
        c: Between -5 and 5.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> task = ForresterFamily()
        >>> print(f"{task.optimal_value:.3f} at {task.optimizers.item():.3f}")
        -6.021 at 0.757
    """

    dim = 1
    study_noise_std = 0.1
    _bounds = [(0.0, 1.0)]  # noqa: RUF012
    _check_grad_at_opt = False
    _ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "a": (0.2, 3.0),
        "b": (-5.0, 15.0),
        "c": (-5.0, 5.0),
    }

    def __init__(self, a: float = 1.0, b: float = 0.0, c: float = 0.0, **options: Any) -> None:
        self.a, self.b, self.c = a, b, c
        super().__init__(**options)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x = X.squeeze(-1)
        wave = (6 * x - 2).square() * (12 * x - 4).sin()
        return self.a * wave + self.b * (x - 0.5) - self.c


Matrix = tuple[tuple[float, ...], ...]


class HartmannFamily(TaskFamily):
    r"""A task of a Hartmann family, App. C.1 of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = - Σ_i α_i exp(- Σ_j A_ij (x_j - P_ij)²)

    on the unit cube, to be minimized. The weights ``α_i`` of the four bumps are uniform in narrow
    intervals. Take one of the two subclasses.

    Args:
        alpha_1: Between 1.00 and 1.02, as drawn by :meth:`sample`; by default Hartmann's own value.
        alpha_2: Between 1.18 and 1.20.
        alpha_3: Between 2.8 and 3.0.
        alpha_4: Between 3.2 and 3.4.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> issubclass(Hartmann6Family, HartmannFamily)
        True
    """

    study_noise_std = 0.1
    _A: ClassVar[Matrix]
    _P: ClassVar[Matrix]
    _ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "alpha_1": (1.00, 1.02),
        "alpha_2": (1.18, 1.20),
        "alpha_3": (2.8, 3.0),
        "alpha_4": (3.2, 3.4),
    }

    def __init__(
        self,
        alpha_1: float = 1.0,
        alpha_2: float = 1.2,
        alpha_3: float = 3.0,
        alpha_4: float = 3.2,
        **options: Any,
    ) -> None:
        self.alpha = (alpha_1, alpha_2, alpha_3, alpha_4)
        super().__init__(**options)

    def _guesses(self) -> Tensor:
        # In six dimensions two narrow bumps compete for the optimum: begin at the bumps' centers.
        return torch.tensor(self._P, dtype=torch.double)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        A, P, alpha = (torch.tensor(values).to(X) for values in (self._A, self._P, self.alpha))
        distance = (A * (X.unsqueeze(-2) - P).square()).sum(dim=-1)
        return -(alpha * torch.exp(-distance)).sum(dim=-1)


class Hartmann3Family(HartmannFamily):
    """A task of the three-dimensional :class:`HartmannFamily`: all tasks are very much alike.

    Example:
        >>> source, target = Hartmann3Family.sample(2, seed=0, negate=True)
        >>> target(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5])
    """

    dim = 3
    _bounds = [(0.0, 1.0)] * 3
    _A = ((3.0, 10.0, 30.0), (0.1, 10.0, 35.0), (3.0, 10.0, 30.0), (0.1, 10.0, 35.0))
    _P = (
        (0.3689, 0.1170, 0.2673),
        (0.4699, 0.4387, 0.7470),
        (0.1091, 0.8732, 0.5547),
        (0.0381, 0.5743, 0.8828),
    )


class Hartmann6Family(HartmannFamily):
    """A task of the six-dimensional :class:`HartmannFamily`.

    The weights decide which of two distant bumps has the optimum. The paper of ScaML-GP has this
    family, too (App. C.6 of [Tighineanu2023scaml]_).

    Example:
        >>> source, target = Hartmann6Family.sample(2, seed=0, noise_std=0.1)
        >>> X, Y = source.sample_data(60, seed=0)
        >>> X.shape, Y.shape
        (torch.Size([60, 6]), torch.Size([60, 1]))
    """

    dim = 6
    _bounds = [(0.0, 1.0)] * 6
    _A = (
        (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
        (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
        (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
        (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
    )
    _P = (
        (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
        (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
        (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
        (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
    )
