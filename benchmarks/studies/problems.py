"""Problems of studies: a target task with the history of other tasks, live or from a table.

A study has `ProblemSource`s, and runs the `Problem` that each source returns for a seed. A problem
with a fixed target is its own source. Synthetic families (`families.py`) and suites (`suites.py`)
draw a problem for each seed.
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
    """The worst value and the median value of random points; NaN if unknown."""

    worst: float = float("nan")
    median: float = float("nan")


UNKNOWN = Landmarks()


def named_seed(name: str, seed: int, evaluation: int) -> int:
    """Computes the seed of one step of the runs on a problem, which is the same for all methods."""
    return zlib.crc32(f"{name}/{seed}/{evaluation}".encode())


def suite_of(problem: str) -> str:
    """Returns the suite of a problem, which is the part of the name before the colon."""
    return problem.partition(": ")[0]


class ProblemSource(Protocol):
    """Protocol of a source of problems, one problem for each seed."""

    @property
    def name(self) -> str:
        """The name of the problem, unique in a study."""

    def step_seed(self, seed: int, evaluation: int) -> int:
        """Returns the seed of a step; step -1 draws the problem, and step 0 the shared design."""

    def instance(self, seed: int, history_size: int | None) -> Problem:
        """Returns the problem of one run.

        Args:
            seed: The seed of all random draws: the target, the sources, and their evaluations.
            history_size: The maximum number of evaluations of each source task to keep.

        Returns:
            The problem.
        """

    def key(self) -> str:
        """Returns a hash of all properties of the problems, without the seed."""


class Problem(Protocol):
    """Protocol of a target task, which methods maximize on the unit cube or on some points."""

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
        """The best known value, which methods must not use; `-inf` if unknown."""

    @property
    def landmarks(self) -> Landmarks:
        """The worst and the median value, to normalize regrets."""

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise of observed values."""

    def evaluate(self, x: Tensor) -> float:
        """Returns the noise-free value at a `d` tensor, to be maximized; NaN for a failure."""

    def design(self, num_points: int, seed: int) -> Tensor:
        """Returns the `num_points x d` initial points that methods without a prior share."""

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """Draws a `d` tensor uniformly from the allowed points without the `m x d` seen points."""

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """Returns the unseen allowed point that is nearest to a `d` tensor."""

    def reference(self, seen: Tensor) -> Tensor:
        """Returns an `N x d` tensor of points at which to compare acquisition values."""

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Maximizes an acquisition function over the allowed points that are not in `seen`."""


@dataclass(frozen=True)
class LiveProblem:
    """A function that is evaluated while the study runs, anywhere in the unit cube.

    Args:
        name: The name of the target task. A resumed study identifies the function by this name.
        function: The value at a `d` tensor in the unit cube, to be maximized. NaN is a failure.
        dim: The number of inputs `d`.
        history: The source tasks' evaluations, inputs in the unit cube.
        best_known: The best known value, to compute regret.
        noise_std: The standard deviation of the noise of observed values.
        landmarks: The worst and the median value, to normalize regrets.

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
        """Evaluates the function."""
        return self.function(x)

    def design(self, num_points: int, seed: int) -> Tensor:
        """Returns the first points of a scrambled Sobol sequence."""
        if num_points == 0:  # Sobol engines refuse zero points
            return torch.empty(0, self.dim, dtype=torch.double)
        return SobolEngine(self.dim, scramble=True, seed=seed).draw(num_points, dtype=torch.double)

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """Draws a point uniformly from the cube."""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.dim, generator=generator, dtype=torch.double)

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """Returns the point itself, because every point of the cube is allowed."""
        return x

    def reference(self, seen: Tensor) -> Tensor:
        """Returns points of a Sobol sequence."""
        return _sobol_points(self.dim)

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Maximizes over the cube by gradients, from the best points of a Sobol sequence."""
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
        """Returns a seed that depends on the name, the seed and the step."""
        return named_seed(self.name, seed, evaluation)

    def instance(self, seed: int, history_size: int | None) -> Self:
        """Returns the problem with a smaller history."""
        return self if history_size is None else self.subsample(history_size, seed)

    def subsample(self, history_size: int, seed: int) -> Self:
        """Returns the problem with at most `history_size` evaluations of each source task."""
        return replace(self, history=subsample_history(self.history, history_size, seed))

    def key(self) -> str:
        """Returns a hash of name, history, noise, best known value and landmarks."""
        return content_key(
            self.name, self.history, self.noise_std, self.best_known, *self.landmarks
        )


def _sobol_points(dim: int) -> Tensor:
    return SobolEngine(dim, scramble=True, seed=0).draw(NUM_REFERENCE, dtype=torch.double)


@dataclass(frozen=True)
class RowsProblem(ABC):
    """Base class of problems on a finite table, in which each point can be evaluated once.

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
        """Zero, because the table contains measured values."""
        return 0.0

    def evaluate(self, x: Tensor) -> float:
        """Looks up the value of a point in the table."""
        rows = (x == self.X).all(dim=-1).nonzero()
        if len(rows) == 0:
            raise ValueError(f"The table of {self.name!r} has no row at {x.tolist()}.")
        return float(self.Y[rows[0, 0]])

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """Returns the nearest unseen row."""
        unseen, _ = self.unseen(seen)
        return unseen[(unseen - x).square().sum(dim=-1).argmin()]

    def unseen(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows without the `m x d` seen points, and their values."""
        taken = (self.X.unsqueeze(1) == seen).all(dim=-1).any(dim=-1)
        if bool(taken.all()):
            raise ValueError(f"All {len(self.X)} rows of {self.name!r} have been evaluated.")
        return self.X[~taken], self.Y[~taken]

    @abstractmethod
    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """Draws an unseen row."""


@dataclass(frozen=True)
class TableProblem(RowsProblem):
    """A table of points that is the target for every seed.

    Args:
        name: The target task's name.
        X: An `N x d` tensor of distinct points in the unit cube.
        Y: An `N x 1` tensor of their values, to be maximized. NaN is a failure.
        history: The source tasks' evaluations, inputs in the unit cube.
        num_sources: The number of source tasks of a run, drawn for each seed; all by default.
        matching: Whether all source tasks have the same points. If so, a subsampled history has the
            same points in all tasks, too.
        elsewhere: The best value of rows that were left out of the table, to compute regret.

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
        """The best value of the table, or of rows that were left out of the table."""
        return max(float(self.Y.nan_to_num(nan=-torch.inf).max()), self.elsewhere)

    @property
    def landmarks(self) -> Landmarks:
        """The worst and the median value of the table."""
        finite = self.Y[self.Y.isfinite()]
        return Landmarks(float(finite.min()), float(finite.median())) if len(finite) else UNKNOWN

    def design(self, num_points: int, seed: int) -> Tensor:
        """Draws rows uniformly; rows nearest to Sobol points would have unequal probabilities."""
        if num_points > len(self.X):
            raise ValueError(f"{self.name!r} has {len(self.X)} rows, fewer than {num_points}.")
        return _shuffled(self.X, seed)[:num_points]

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """Draws an unseen row."""
        return _shuffled(self.unseen(seen)[0], seed)[0]

    def reference(self, seen: Tensor) -> Tensor:
        """Returns points of a Sobol sequence, because a table may have many thousand rows."""
        return _sobol_points(self.dim)

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Returns the unseen row with the largest score; ties are broken at random.

        All methods break ties alike. The first of equal rows would be a biased choice, because
        tables are sorted.
        """
        choices = _shuffled(self.unseen(seen)[0], seed)
        candidate, _ = optimize_acqf_discrete(acquisition, q=1, choices=choices)
        return candidate[0]

    def step_seed(self, seed: int, evaluation: int) -> int:
        """Returns a seed that depends on the name, the seed and the step."""
        return named_seed(self.name, seed, evaluation)

    def instance(self, seed: int, history_size: int | None) -> Self:
        """Returns the problem with some of the source tasks, and a smaller history of each task."""
        problem = self
        if self.num_sources is not None:
            chosen = _draw(list(self.history), self.num_sources, seed)
            history = {name: self.history[name] for name in chosen}
            problem = replace(self, history=history, num_sources=None)
        return problem if history_size is None else problem.subsample(history_size, seed)

    def subsample(self, history_size: int, seed: int) -> Self:
        """Returns the problem with at most `history_size` evaluations of each source task."""
        history = subsample_history(self.history, history_size, seed, self.matching)
        return replace(self, history=history)

    def key(self) -> str:
        """Returns a hash of the name, the table and the history."""
        drawn = self.num_sources, self.matching
        return content_key(self.name, self.X, self.Y, self.history, self.elsewhere, *drawn)


@dataclass(frozen=True)
class PoolProblem(RowsProblem):
    """A pool of rows that was drawn for one run, with the random generator of the run.

    The generator also draws the run's random points, and breaks ties between rows with equal
    scores. Two runs are therefore equal as long as they draw the same numbers.

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
        """The best value of the pool."""
        return float(self.Y.max())

    @property
    def landmarks(self) -> Landmarks:
        """The worst and the median value of the pool; the median is kept below the best value."""
        below = self.best_known - MIN_RANGE
        return Landmarks(float(self.Y.min()), min(float(np.median(self.Y.numpy())), below))

    def design(self, num_points: int, seed: int) -> Tensor:
        """Draws rows at random."""
        points = self.X[:0]
        for _ in range(num_points):
            points = torch.cat([points, self.draw(points, seed).unsqueeze(0)])
        return points

    def draw(self, seen: Tensor, seed: int) -> Tensor:
        """Draws an unseen row."""
        unseen, _ = self.unseen(seen)
        return self._best(unseen, torch.from_numpy(self.generator.random(len(unseen))))

    def reference(self, seen: Tensor) -> Tensor:
        """Returns all unseen rows."""
        return self.unseen(seen)[0]

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Returns the unseen row with the largest score."""
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
    """Draws some evaluations of every source task, without replacement.

    Args:
        history: The source tasks.
        history_size: The number of evaluations of each task to keep; smaller tasks are kept whole.
        seed: The seed of the draws.
        matching: Whether to draw the same rows of all tasks. All tasks must then have equally many
            rows.

    Returns:
        The smaller history, with rows in their original order.
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
    """Draws some names at random, and keeps their order."""
    generator = torch.Generator().manual_seed(seed)
    return [names[i] for i in sorted(torch.randperm(len(names), generator=generator)[:number])]
