"""What is optimized: a target task with the history of other tasks, live or from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.pretraining.memo import content_key

History = Mapping[str, SourceData]

NUM_RESTARTS = 4
RAW_SAMPLES = 128
MAX_ITER = 100


class Problem(Protocol):
    """A target task that methods maximize on the unit cube, or on some points of it."""

    @property
    def name(self) -> str:
        """The target task's name, unique in a study."""
        ...

    @property
    def dim(self) -> int:
        """The number of inputs `d`."""
        ...

    @property
    def history(self) -> History:
        """The source tasks' evaluations."""
        ...

    @property
    def best_known(self) -> float:
        """The best value known beforehand, never shown to methods; `-inf` if there is none."""
        ...

    def evaluate(self, x: Tensor) -> float:
        """The value at a `d` tensor, to be maximized; NaN if the evaluation failed."""
        ...

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """The allowed point nearest to a `d` tensor and not among the `m x d` seen ones."""
        ...

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """The `d` tensor where an acquisition is largest, not among the `m x d` seen ones."""
        ...

    def subsample(self, history_size: int, seed: int) -> Self:
        """The same problem with at most `history_size` random evaluations of each source task."""
        ...

    def key(self) -> str:
        """A digest of the name, the history and, if there is one, the table."""
        ...


@dataclass(frozen=True)
class LiveProblem:
    """A function that is evaluated while the study runs, anywhere in the unit cube.

    Args:
        name: The target task's name. When a study is resumed, it stands for the function, too.
        function: The value at a `d` tensor in the unit cube, to be maximized. NaN is a failure.
        dim: The number of inputs `d`.
        history: The source tasks' evaluations, inputs in the unit cube.
        best_known: The best value known beforehand, to measure regret by.

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

    def evaluate(self, x: Tensor) -> float:
        """Calls the function."""
        return self.function(x)

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """The point itself: every point of the cube is allowed."""
        return x

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

    def subsample(self, history_size: int, seed: int) -> Self:
        """The same problem with a smaller history."""
        return replace(self, history=subsample_history(self.history, history_size, seed))

    def key(self) -> str:
        """A digest of name and history."""
        return content_key(self.name, self.history)


@dataclass(frozen=True)
class TableProblem:
    """A finite table of evaluated points, each of which can be had once.

    Args:
        name: The target task's name.
        X: An `N x d` tensor of distinct points in the unit cube.
        Y: An `N x 1` tensor of their values, to be maximized. NaN is a failure.
        history: The source tasks' evaluations, inputs in the unit cube.

    Example:
        >>> X = torch.tensor([[0.0], [1.0]], dtype=torch.double)
        >>> TableProblem("two rows", X, 3 * X).evaluate(X[1])
        3.0
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
    def best_known(self) -> float:
        """The table's best value."""
        return float(self.Y.nan_to_num(nan=-torch.inf).max())

    def evaluate(self, x: Tensor) -> float:
        """Looks the point up."""
        rows = (x == self.X).all(dim=-1).nonzero()
        if len(rows) == 0:
            raise ValueError(f"The table of {self.name!r} has no row at {x.tolist()}.")
        return float(self.Y[rows[0, 0]])

    def nearest(self, x: Tensor, seen: Tensor) -> Tensor:
        """The nearest row not seen yet."""
        unseen = self._unseen(seen)
        return unseen[(unseen - x).square().sum(dim=-1).argmin()]

    def maximize(self, acquisition: AcquisitionFunction, seen: Tensor, seed: int) -> Tensor:
        """Scores all rows not seen yet."""
        candidate, _ = optimize_acqf_discrete(acquisition, q=1, choices=self._unseen(seen))
        return candidate[0]

    def subsample(self, history_size: int, seed: int) -> Self:
        """The same problem with a smaller history."""
        return replace(self, history=subsample_history(self.history, history_size, seed))

    def key(self) -> str:
        """A digest of name, table and history."""
        return content_key(self.name, self.X, self.Y, self.history)

    def _unseen(self, seen: Tensor) -> Tensor:
        taken = (self.X.unsqueeze(1) == seen).all(dim=-1).any(dim=-1)
        if bool(taken.all()):
            raise ValueError(f"All {len(self.X)} rows of {self.name!r} have been evaluated.")
        return self.X[~taken]


def subsample_history(history: History, history_size: int, seed: int) -> dict[str, SourceData]:
    """Draw some evaluations of every source task, without replacement.

    Args:
        history: The source tasks.
        history_size: The number of evaluations to keep of each; smaller tasks are kept whole.
        seed: The seed of the draws.

    Returns:
        The smaller history, rows in their old order.
    """
    generator = torch.Generator().manual_seed(seed)
    smaller: dict[str, SourceData] = {}
    for name, task in zip(history, as_datasets(history) if history else [], strict=True):
        rows = torch.randperm(len(task.Y), generator=generator)[:history_size].sort().values
        smaller[name] = SupervisedDataset(
            task.X[rows],
            task.Y[rows],
            Yvar=None if task.Yvar is None else task.Yvar[rows],
            feature_names=task.feature_names,
            outcome_names=task.outcome_names,
        )
    return smaller
