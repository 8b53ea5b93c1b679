"""Methods without a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.studies.problems import Problem
from botorch_transfer.data import as_datasets


@dataclass(frozen=True)
class RandomSearch:
    """Points drawn uniformly, history ignored."""

    initial_design: bool = True

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Draws a point."""
        return problem.draw(X, seed)


@dataclass(frozen=True)
class HistoryReplay:
    """What was best on each source task, one after another in random order, then random points.

    It asks whether a model of the history is worth more than its winners alone.
    """

    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Picks a source task at random and takes its best point not seen yet."""
        winners = [task.X[task.Y.argmax()].double() for task in as_datasets(problem.history)]
        fresh = [x for x in winners if not _contains(X, problem.nearest(x, X[:0]))]
        if not fresh:
            return RandomSearch().suggest(problem, X, Y, seed)
        generator = torch.Generator().manual_seed(seed)
        choice = int(torch.randint(len(fresh), (1,), generator=generator))
        return problem.nearest(fresh[choice], X)


def _contains(X: Tensor, x: Tensor) -> bool:
    return bool((x == X).all(dim=-1).any())
