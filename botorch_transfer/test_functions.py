r"""Families of synthetic tasks: BoTorch test functions with random parameters.

Each class is a family, and each object is one task of the family. :class:`TaskFamily` draws tasks
and finds their optima. Alpine, Branin, and Hartmann in three and six dimensions are families of the
ScaML-GP and hierarchical GP papers. All functions are minimized; negate them for models.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
    arXiv:2312.00742.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from botorch.generation.gen import gen_candidates_scipy
from botorch.test_functions.synthetic import Hartmann, SyntheticTestFunction
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.transforms import unnormalize
from torch import Tensor

NUM_RAW, NUM_STARTS = 2048, 16

Ranges = dict[str, tuple[float, float]]


class TaskFamily(SyntheticTestFunction):
    """Base class of families of related test functions; an object is one task of the family.

    Use a family to test transfer between similar tasks. A subclass defines the intervals from which
    parameters are drawn. The optimum of a task has no formula, so the first access of
    ``optimal_value`` or ``optimizers`` searches for the optimum.

    Args:
        noise_std: The standard deviation of the observation noise.
        negate: Whether to negate the function, so that it is maximized.
        bounds: Pairs of a lower and an upper bound; by default the bounds of the family.
        dtype: The dtype of the bounds.

    Example:
        >>> from botorch_transfer.test_functions import BraninFamily
        >>> target, sources = BraninFamily.sample_problem(num_sources=2, seed=0, negate=True)
        >>> history = {name: task.sample_data(20, seed=1) for name, task in sources.items()}
        >>> SourceGPs.fit(history, num_restarts=0).task_names
        ('source 0', 'source 1')
    """

    #: Standard deviation of the observation noise in benchmark studies: the value in the paper of
    #: the family, if the paper has a value.
    study_noise_std: ClassVar[float] = 0.1
    #: Interval from which each parameter is drawn uniformly.
    _ranges: ClassVar[Ranges]

    @property
    def continuous_inds(self) -> list[int]:  # type: ignore[override]
        """Indices of the continuous inputs; all inputs are continuous."""
        return list(range(self.dim))

    @classmethod
    def sample(cls, num_tasks: int, seed: int, **options: Any) -> list[Self]:
        """Draws tasks of the family.

        Args:
            num_tasks: The number of tasks.
            seed: The seed. With the same seed, the first tasks are the same for any ``num_tasks``.
            **options: Further arguments of the constructor, such as ``negate``.

        Returns:
            The tasks.
        """
        generator = torch.Generator().manual_seed(seed)
        unit = torch.rand(num_tasks, len(cls._ranges), generator=generator, dtype=torch.double)
        lower, upper = torch.tensor(list(cls._ranges.values()), dtype=torch.double).T
        draws = (lower + (upper - lower) * unit).tolist()
        return [cls(**dict(zip(cls._ranges, values, strict=True)), **options) for values in draws]

    @classmethod
    def sample_problem(
        cls, num_sources: int, seed: int, **options: Any
    ) -> tuple[Self, dict[str, Self]]:
        """Draws a target task and source tasks, for one repetition of an experiment.

        Args:
            num_sources: The number of source tasks.
            seed: The seed.
            **options: Further arguments of the constructor, such as ``negate``.

        Returns:
            The target task, and the source tasks by name.
        """
        target, *sources = cls.sample(num_sources + 1, seed, **options)
        return target, {f"source {number}": task for number, task in enumerate(sources)}

    def sample_data(self, num_points: int, seed: int) -> tuple[Tensor, Tensor]:
        """Evaluates the task at uniform random points, for source data of a model.

        Args:
            num_points: The number of points ``n``.
            seed: The seed of points and noise. The global generator does not change.

        Returns:
            An ``n x d`` tensor of inputs scaled to the unit cube, and an ``n x 1`` tensor of
            outcomes. Noise and negation are as given to the constructor.
        """
        generator = torch.Generator().manual_seed(seed)
        bounds = cast(Tensor, self.bounds)
        unit = torch.rand(num_points, self.dim, generator=generator, dtype=torch.double).to(bounds)
        values = self._evaluate_true(unnormalize(unit, bounds))
        if self.noise_std is not None:
            error = torch.randn(num_points, generator=generator, dtype=torch.double)
            values = values + cast(float, self.noise_std) * error.to(bounds)
        return unit, (-values if self.negate else values).unsqueeze(-1)

    @property
    def _optimal_value(self) -> float:  # type: ignore[override]  # read by `optimal_value`
        return self._minima[1]

    @property
    def optimizers(self) -> Tensor:
        """The point with the best function value, a ``1 x d`` tensor."""
        return self._minima[0].to(cast(Tensor, self.bounds))

    @cached_property
    def _minima(self) -> tuple[Tensor, float]:
        """Minimizer and minimum of the task before negation.

        L-BFGS-B starts from the best of many points.
        """
        bounds = cast(Tensor, self.bounds).double().cpu()
        X = draw_sobol_samples(bounds, n=NUM_RAW, q=1, seed=0).squeeze(-2)
        with torch.no_grad():
            values = self._evaluate_true(X)
        guesses = self._guesses().to(X).clamp(*bounds)
        starts = torch.cat([guesses, X[values.argsort()[:NUM_STARTS]]])
        with warnings.catch_warnings(record=True):  # BoTorch warns if a start does not improve
            found, negated = gen_candidates_scipy(
                starts.unsqueeze(-2),
                lambda X: -self._evaluate_true(X.squeeze(-2)),  # type: ignore[arg-type]
                *bounds,
            )
        return found[negated.argmax()], -float(negated.max())

    def _guesses(self) -> Tensor:
        """Returns additional ``k x d`` starting points for the search for the optimum."""
        return torch.empty(0, self.dim)


class AlpineFamily(TaskFamily):
    r"""A task of the Alpine family, App. C.1 (Eq. 39) of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = x sin(x + π + s) + c x

    on ``[-10, 10]``, minimized. In the paper's studies, the target has the shift ``s = 0``, and the
    five sources have the shifts ``SHIFTS``. All tasks have the slope ``c = 0.1``. Fig. 1 of the
    paper shows another family, with slopes ``±1/2`` and without shifts.

    Args:
        s: The shift; by default the shift of the target.
        c: The slope.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> target, sources = AlpineFamily.sample_problem(5, seed=0)
        >>> [round(12 * task.s / torch.pi) for task in (target, *sources.values())]
        [0, 1, 2, 3, 4, 5]
    """

    #: Shifts of the source tasks.
    SHIFTS: ClassVar[tuple[float, ...]] = tuple(k * math.pi / 12 for k in range(1, 6))

    dim = 1
    _bounds = [(-10.0, 10.0)]  # noqa: RUF012
    _check_grad_at_opt = False

    def __init__(self, s: float = 0.0, c: float = 0.1, **options: Any) -> None:
        self.s, self.c = s, c
        super().__init__(**options)

    @classmethod
    def sample(cls, num_tasks: int, seed: int, **options: Any) -> list[Self]:
        """Draws source tasks with distinct shifts.

        Args:
            num_tasks: The number of tasks, at most five.
            seed: The seed. With the same seed, the first tasks are the same for any ``num_tasks``.
            **options: Further arguments of the constructor, such as ``negate``.

        Returns:
            The tasks.

        Raises:
            ValueError: If ``num_tasks`` is larger than five.
        """
        if num_tasks > len(cls.SHIFTS):
            text = f"The Alpine family has {len(cls.SHIFTS)} source tasks, not {num_tasks}"
            raise ValueError(f"{text}: make further tasks by AlpineFamily(s=...).")
        order = torch.randperm(len(cls.SHIFTS), generator=torch.Generator().manual_seed(seed))
        return [cls(s=cls.SHIFTS[k], **options) for k in order[:num_tasks].tolist()]

    @classmethod
    def sample_problem(
        cls, num_sources: int, seed: int, **options: Any
    ) -> tuple[Self, dict[str, Self]]:
        """Returns the target task of the paper's experiments, and draws source tasks.

        Args:
            num_sources: The number of source tasks, at most five.
            seed: The seed for the choice of source tasks.
            **options: Further arguments of the constructor, such as ``negate``.

        Returns:
            The target, which does not depend on the seed, and the source tasks by name, in the
            order of their shifts.
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

    on ``[-5, 10] x [0, 15]``, minimized. The square of the parentheses is missing in the paper's
    formula. :meth:`sample` draws each parameter uniformly from its range. The defaults give the
    Branin function. The three minima are at ``x_1 = -π, π`` and ``3π`` and have the value ``s t``,
    unless the bound ``x_2 = 0`` cuts off the second or the third minimum. The parameters ``b``,
    ``c`` and ``r`` move the minima along ``x_2``.

    Args:
        a: A parameter of the formula. Range: 0.5 to 1.5.
        b: A parameter of the formula. Range: 0.1 to 0.15.
        c: A parameter of the formula. Range: 1 to 2.
        r: A parameter of the formula. Range: 5 to 7.
        s: A parameter of the formula. Range: 8 to 12.
        t: A parameter of the formula. Range: 0.03 to 0.05.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> source, target = BraninFamily.sample(2, seed=0, negate=True)
        >>> target(torch.tensor([[0.0, 5.0]], dtype=torch.double)).shape
        torch.Size([1])
    """

    dim = 2
    study_noise_std = 1.0
    _bounds = [(-5.0, 10.0), (0.0, 15.0)]  # noqa: RUF012
    _ranges: ClassVar[Ranges] = {
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


class HartmannFamily(TaskFamily):
    r"""A task of a Hartmann family, App. C.1 of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = - Σ_i α_i exp(- Σ_j A_ij (x_j - P_ij)²)

    on the unit cube, minimized. :meth:`sample` draws the weights ``α_i`` of the four bumps
    uniformly from narrow ranges. The defaults give the Hartmann function. Use one of the two
    subclasses.

    Args:
        alpha_1: The weight of the first bump. Range: 1.00 to 1.02.
        alpha_2: The weight of the second bump. Range: 1.18 to 1.20.
        alpha_3: The weight of the third bump. Range: 2.8 to 3.0.
        alpha_4: The weight of the fourth bump. Range: 3.2 to 3.4.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> issubclass(Hartmann6Family, HartmannFamily)
        True
    """

    _ranges: ClassVar[Ranges] = {
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
        super().__init__(**options)
        self.alpha = (alpha_1, alpha_2, alpha_3, alpha_4)
        self._hartmann = Hartmann(self.dim)
        self._hartmann.ALPHA = torch.tensor(self.alpha)

    def _guesses(self) -> Tensor:
        # The centers of the bumps. In six dimensions, two narrow bumps compete for the optimum.
        return cast(Tensor, self._hartmann.P) / 10_000

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._hartmann._evaluate_true(X)


class Hartmann3Family(HartmannFamily):
    """A task of the three-dimensional :class:`HartmannFamily`.

    All tasks of this family are very similar.

    Example:
        >>> source, target = Hartmann3Family.sample(2, seed=0, negate=True)
        >>> target(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5])
    """

    dim = 3
    _bounds = [(0.0, 1.0)] * 3


class Hartmann6Family(HartmannFamily):
    """A task of the six-dimensional :class:`HartmannFamily`.

    The weights determine which of two distant bumps has the optimum. The ScaML-GP paper uses this
    family (App. C.6 of [Tighineanu2023scaml]_).

    Example:
        >>> source, target = Hartmann6Family.sample(2, seed=0, noise_std=0.1)
        >>> X, Y = source.sample_data(60, seed=0)
        >>> X.shape, Y.shape
        (torch.Size([60, 6]), torch.Size([60, 1]))
    """

    dim = 6
    _bounds = [(0.0, 1.0)] * 6
