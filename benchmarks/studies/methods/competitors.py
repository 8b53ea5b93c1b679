"""Competitors of `benchmarks.competitors` as methods of the studies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.competitors import Competitor
from benchmarks.studies.methods.base import with_failures_worst
from benchmarks.studies.methods.baselines import RandomSearch
from benchmarks.studies.problems import Problem
from botorch_transfer.memo import Memo, content_key

_built = Memo(size=16)


@dataclass(frozen=True)
class CompetitorMethod:
    """A competitor, built once a history, and the maximizer of its acquisition.

    Args:
        competitor: Its class.
        seed: The seed that it is built with.
        settings: What, besides the method's name, its runs depend on.
    """

    competitor: type[Competitor]
    seed: int = 0
    settings: str = ""

    @property
    def initial_design(self) -> bool:
        """Whether it needs the shared first points."""
        return self.competitor.needs_data

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Maximizes the acquisition; failures count as the worst value yet."""
        usable_X, usable_Y = with_failures_worst(X, Y)
        if self.initial_design and len(usable_Y) == 0:
            return RandomSearch().suggest(problem, X, Y, seed)
        built = _built.recall(
            content_key(problem.history, problem.dim, self.competitor.__name__, self.seed),
            lambda: self._build(problem),
        )
        return problem.maximize(built.acquisition(usable_X, usable_Y), X, seed)

    def _build(self, problem: Problem) -> Competitor:
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, problem.dim)
        return self.competitor.build(problem.history, bounds, self.seed)
