"""What is optimized: a target task with the history of other tasks, live or from a table.

A study plans with `ProblemSource`s, and runs the `Problem` that each gives for a seed. Problems
whose target is always the same are their own source; synthetic families (`families.py`) and suites
(`suites.py`) draw one.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.memo import content_key

History = Mapping[str, SourceData]

NUM_RESTARTS = 4
RAW_SAMPLES = 128
MAX_ITER = 100
NUM_REFERENCE = 256
MIN_RANGE = CHANCE = 1e-12


class Landmarks(NamedTuple):
    """The worst value, and the median one of points drawn at random; NaN if unknown."""

    worst: float = float("nan")
    median: float = float("nan")


UNKNOWN = Landmarks()


def named_seed(name: str, seed: int, evaluation: int) -> int:
    """The seed of one step of the runs on a problem, the same for all methods."""
    return zlib.crc32(f"{name}/{seed}/{evaluation}".encode())


def suite_of(problem: str) -> str:
    """The suite of a problem of this name: what stands before the colon."""
    return problem.partition(": ")[0]


class ProblemSource(Protocol):
    """What gives a problem for every seed."""

    @property
    def name(self) -> str:
        """The name, unique in a study."""

    def step_seed(self, seed: int, evaluation: int) -> int:
        """The seed of one step of a run; -1 is the draw of the problem, 0 the shared design."""

    def instance(self, seed: int, history_size: int | None) -> Problem:
        """The problem of one run.

        Args:
            seed: Decides on all that is drawn: the target, the sources, their evaluations.
            history_size: The number of evaluations of each source task to keep, at most.

        Returns:
            The problem.
        """

    def key(self) -> str:
        """A digest of all that its problems depend on, besides the seed."""


class Problem(Protocol):
    """A target task that methods maximize on the unit cube, or on some points of it."""

    @property
    def name(self) -> str:
        """The target task's name, unique in a study."""

    @property
    def dim(self) -> int:
        """The number of inputs `d`."""

    @property
    def history(self) -> History:
        """The source tasks' evaluations."""

    @property
    def best_known(self) -> float:
        """The best value known beforehand, never shown to methods; `-inf` if there is none."""

    @property
    def landmarks(self) -> Landmarks:
        """What regrets may be compared with."""

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise that methods see values with."""

    def evaluate(self, x: Tensor) -> float:
        """The value at a `d` tensor without noise, to be maximized; NaN if it failed."""

    def design(self, num_points: int, seed: int) -> Tensor:
        """The `num_points x d` first points that methods without a prior share."""

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """A `d` tensor at random, every allowed point not among the `m x d` seen ones alike."""

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """The allowed point nearest to a `d` tensor and not among the `m x d` seen ones."""

    def reference(self, seen: Tensor) -> Tensor:
        """An `N x d` tensor of points to compare acquisition values on."""

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """The `d` tensor where an acquisition is largest, not among the `m x d` seen ones."""


@dataclass(frozen=True)
class LiveProblem:
    """A function that is evaluated while the study runs, anywhere in the unit cube.

    Args:
        name: The target task's name. When a study is resumed, it stands for the function, too.
        function: The value at a `d` tensor in the unit cube, to be maximized. NaN is a failure.
        dim: The number of inputs `d`.
        history: The source tasks' evaluations, inputs in the unit cube.
        best_known: The best value known beforehand, to measure regret by.
        noise_std: The standard deviation of the noise that methods see values with.
        landmarks: Values to compare regrets with.

    Example:
        >>> problem = LiveProblem("sum", lambda x: float(x.sum()), dim=2)
        >>> problem.evaluate(torch.ones(2))
        2.0
    """

    name: str
    function: Callable[[Tensor], float]
    dim: int
    history: History = field(default_factory=dict)
    best_known: float = -torch.inf
    noise_std: float = 0.0
    landmarks: Landmarks = UNKNOWN

    def evaluate(self, x: Tensor) -> float:
        """Calls the function."""
        return self.function(x)

    def design(self, num_points: int, seed: int) -> Tensor:
        """The first points of a scrambled Sobol sequence."""
        if num_points == 0:  # which Sobol engines refuse
            return torch.empty(0, self.dim, dtype=torch.double)
        return SobolEngine(self.dim, scramble=True, seed=seed).draw(num_points, dtype=torch.double)

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """A point uniform in the cube."""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.dim, generator=generator, dtype=torch.double)

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """The point itself: every point of the cube is allowed."""
        return x

    def reference(self, seen: Tensor) -> Tensor:
        """Points of a Sobol sequence."""
        return _sobol_points(self.dim)

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Searches the cube by gradients from the best of a Sobol sequence."""
        bounds = torch.tensor([[0.0] * self.dim, [1.0] * self.dim], dtype=torch.double)
        candidate, _ = optimize_acqf(
            acquisition,
            bounds=bounds,
            q=1,
            num_restarts=NUM_RESTARTS,
            raw_samples=RAW_SAMPLES,
            options={"maxiter": MAX_ITER, "seed": seed},
        )
        return candidate[0]

    def step_seed(self, seed: int, evaluation: int) -> int:
        """Follows from the name."""
        return named_seed(self.name, seed, evaluation)

    def instance(self, seed: int, history_size: int | None) -> Self:
        """The same problem with a smaller history."""
        return self if history_size is None else self.subsample(history_size, seed)

    def subsample(self, history_size: int, seed: int) -> Self:
        """The same problem with at most `history_size` evaluations of each source task."""
        return replace(self, history=subsample_history(self.history, history_size, seed))

    def key(self) -> str:
        """A digest of name, history, noise and what regret is measured by."""
        return content_key(
            self.name, self.history, self.noise_std, self.best_known, *self.landmarks
        )


def _sobol_points(dim: int) -> Tensor:
    return SobolEngine(dim, scramble=True, seed=0).draw(NUM_REFERENCE, dtype=torch.double)


@dataclass(frozen=True)
class RowsProblem(ABC):
    """A finite table of evaluated points, each of which can be had once.

    Args:
        name: The target task's name.
        X: An `N x d` tensor of distinct points in the unit cube.
        Y: An `N x 1` tensor of their values, to be maximized. NaN is a failure.
        history: The source tasks' evaluations, inputs in the unit cube.
    """

    name: str
    X: Tensor
    Y: Tensor
    history: History = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(torch.unique(self.X, dim=0)) < len(self.X):
            raise ValueError(f"The table of {self.name!r} has equal rows of X: merge them.")

    @property
    def dim(self) -> int:
        """The number of inputs `d`."""
        return self.X.shape[-1]

    @property
    def noise_std(self) -> float:
        """None: the table holds what was measured."""
        return 0.0

    def evaluate(self, x: Tensor) -> float:
        """Looks the point up."""
        rows = (x == self.X).all(dim=-1).nonzero()
        if len(rows) == 0:
            raise ValueError(f"The table of {self.name!r} has no row at {x.tolist()}.")
        return float(self.Y[rows[0, 0]])

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """The nearest row not seen yet."""
        unseen, _ = self.unseen(seen)
        return unseen[(unseen - x).square().sum(dim=-1).argmin()]

    def unseen(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The rows not among the `m x d` seen points, and their values."""
        taken = (self.X.unsqueeze(1) == seen).all(dim=-1).any(dim=-1)
        if bool(taken.all()):
            raise ValueError(f"All {len(self.X)} rows of {self.name!r} have been evaluated.")
        return self.X[~taken], self.Y[~taken]

    @abstractmethod
    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """A row not seen yet."""


@dataclass(frozen=True)
class TableProblem(RowsProblem):
    """A table that is the target of every seed.

    Args:
        name: The target task's name.
        X: An `N x d` tensor of distinct points in the unit cube.
        Y: An `N x 1` tensor of their values, to be maximized. NaN is a failure.
        history: The source tasks' evaluations, inputs in the unit cube.
        num_sources: How many of the source tasks a run has, others for each seed; all by default.
        matching: Whether all source tasks were evaluated at the same points, and stay so when the
            history is sampled.
        elsewhere: The best value of rows that were left out of the table, to measure regret by.

    Example:
        >>> X = torch.tensor([[0.0], [1.0]], dtype=torch.double)
        >>> TableProblem("two rows", X, 3 * X).evaluate(X[1])
        3.0
    """

    num_sources: int | None = None
    matching: bool = False
    elsewhere: float = -torch.inf

    @property
    def best_known(self) -> float:
        """The table's best value, or that of rows left out."""
        return max(float(self.Y.nan_to_num(nan=-torch.inf).max()), self.elsewhere)

    @property
    def landmarks(self) -> Landmarks:
        """The table's worst and median value."""
        finite = self.Y[self.Y.isfinite()]
        return Landmarks(float(finite.min()), float(finite.median())) if len(finite) else UNKNOWN

    def design(self, num_points: int, seed: int) -> Tensor:
        """Rows at random: those nearest to a Sobol sequence would be some more than others."""
        if num_points > len(self.X):
            raise ValueError(f"{self.name!r} has {len(self.X)} rows, fewer than {num_points}.")
        return _shuffled(self.X, seed)[:num_points]

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """A row not seen yet."""
        return _shuffled(self.unseen(seen)[0], seed)[0]

    def reference(self, seen: Tensor) -> Tensor:
        """Points of a Sobol sequence: a table may have many thousand rows."""
        return _sobol_points(self.dim)

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Scores all rows not seen yet; chance, the same for all methods, decides between equals.

        Where an acquisition is the same everywhere, the first row would be as good a choice, but
        tables are sorted.
        """
        choices = _shuffled(self.unseen(seen)[0], seed)
        candidate, _ = optimize_acqf_discrete(acquisition, q=1, choices=choices)
        return candidate[0]

    def step_seed(self, seed: int, evaluation: int) -> int:
        """Follows from the name."""
        return named_seed(self.name, seed, evaluation)

    def instance(self, seed: int, history_size: int | None) -> Self:
        """The same problem with some of the source tasks, and a smaller history of each."""
        problem = self
        if self.num_sources is not None:
            chosen = _draw(list(self.history), self.num_sources, seed)
            history = {name: self.history[name] for name in chosen}
            problem = replace(self, history=history, num_sources=None)
        return problem if history_size is None else problem.subsample(history_size, seed)

    def subsample(self, history_size: int, seed: int) -> Self:
        """The same problem with at most `history_size` evaluations of each source task."""
        history = subsample_history(self.history, history_size, seed, self.matching)
        return replace(self, history=history)

    def key(self) -> str:
        """A digest of name, table and history."""
        drawn = self.num_sources, self.matching
        return content_key(self.name, self.X, self.Y, self.history, self.elsewhere, *drawn)


@dataclass(frozen=True)
class PoolProblem(RowsProblem):
    """A pool of rows that was drawn for one run, with the generator that drew it.

    The generator goes on with the run's random points, and decides between rows that score the
    same. So runs follow each other exactly where they draw the same numbers.

    Args:
        name: The target task's name.
        X: An `N x d` tensor of distinct points in the unit cube.
        Y: An `N x 1` tensor of their values, to be maximized.
        history: The source tasks' evaluations.
        generator: The generator.
    """

    generator: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def best_known(self) -> float:
        """The pool's best value."""
        return float(self.Y.max())

    @property
    def landmarks(self) -> Landmarks:
        """The pool's worst and median value; a median as good as the best is put just below it."""
        below = self.best_known - MIN_RANGE
        return Landmarks(float(self.Y.min()), min(float(np.median(self.Y.numpy())), below))

    def design(self, num_points: int, seed: int) -> Tensor:
        """Rows at random."""
        points = self.X[:0]
        for _ in range(num_points):
            points = torch.cat([points, self.draw(points, seed).unsqueeze(0)])
        return points

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """A row not seen yet."""
        unseen, _ = self.unseen(seen)
        return self._best(unseen, torch.from_numpy(self.generator.random(len(unseen))))

    def reference(self, seen: Tensor) -> Tensor:
        """All rows not seen yet."""
        return self.unseen(seen)[0]

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Scores all rows not seen yet."""
        unseen, _ = self.unseen(seen)
        with torch.no_grad():
            return self._best(unseen, acquisition(unseen.unsqueeze(-2)))

    def _best(self, rows: Tensor, scores: Tensor) -> Tensor:
        chance = torch.from_numpy(self.generator.random(len(rows)))
        return rows[int((scores + CHANCE * chance).argmax())]


def _shuffled(rows: Tensor, seed: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]


def subsample_history(
    history: History, history_size: int, seed: int, matching: bool = False
) -> dict[str, SourceData]:
    """Draw some evaluations of every source task, without replacement.

    Args:
        history: The source tasks.
        history_size: The number of evaluations to keep of each; smaller tasks are kept whole.
        seed: The seed of the draws.
        matching: Whether to draw the same rows of all tasks, which must have the same number.

    Returns:
        The smaller history, rows in their old order.
    """
    generator = torch.Generator().manual_seed(seed)
    smaller: dict[str, SourceData] = {}
    for name, task in zip(history, as_datasets(history) if history else [], strict=True):
        if matching:
            generator.manual_seed(seed)
        rows = torch.randperm(len(task.Y), generator=generator)[:history_size].sort().values
        smaller[name] = SupervisedDataset(
            task.X[rows],
            task.Y[rows],
            Yvar=None if task.Yvar is None else task.Yvar[rows],
            feature_names=task.feature_names,
            outcome_names=task.outcome_names,
        )
    return smaller


def _draw(names: list[str], number: int, seed: int) -> list[str]:
    """Some names at random, in their old order."""
    generator = torch.Generator().manual_seed(seed)
    return [names[i] for i in sorted(torch.randperm(len(names), generator=generator)[:number])]
