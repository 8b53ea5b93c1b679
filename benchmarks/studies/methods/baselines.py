"""Methods without a model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from benchmarks.studies.methods.base import Method
from benchmarks.studies.problems import Problem
from botorch_transfer import SourceGPs
from botorch_transfer.data import as_datasets
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.suggestion.outcomes import mean_rank

_sources = Memo(size=8)


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


class Scores(AcquisitionFunction):
    """Scores of single rows as an acquisition function.

    Args:
        score: The scores of an `n x d` tensor of rows.
    """

    def __init__(self, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]
        self.score = score

    def forward(self, X: Tensor) -> Tensor:
        """Scores a `batch_shape x 1 x d` tensor of rows."""
        # A search by gradients finds none, and keeps the best of its random rows.
        scores = self.score(X.reshape(-1, X.shape[-1])).detach()
        return scores.reshape(X.shape[:-2]) + 0.0 * X.sum((-2, -1))


@dataclass(frozen=True)
class SortedRows:
    """Rows sorted by their mean rank in the source tasks, that of the nearest row in each.

    It asks whether a model is worth more than ten lines of pandas.
    """

    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Takes the best row not seen yet."""
        tasks = {str(i): task for i, task in enumerate(as_datasets(problem.history))}
        return problem.maximize(Scores(lambda rows: mean_rank(tasks, rows)), X, seed)


@dataclass(frozen=True)
class Portfolio:
    """Rows that complement each other on the source tasks, chosen greedily.

    The next row is the one that, with those seen so far, leaves the least mean regret under the
    means of the source tasks' GPs, each in its own range from the median to the best.
    """

    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Takes the row that adds most to those seen."""
        key = content_key(problem.history)
        sources = _sources.recall(key, lambda: SourceGPs.fit(problem.history))
        old = [task.X.double() for task in as_datasets(problem.history)]
        means = sources.mean(torch.cat([problem.reference(X), X, *old])).detach()
        top, middle = (part.unsqueeze(-1) for part in (means.amax(-1), means.median(-1).values))
        unit = (top - middle).clamp_min(1e-9)

        def regret(rows: Tensor) -> Tensor:
            return ((top - sources.mean(rows)) / unit).clamp(0.0, 1.0)

        left = regret(X).amin(dim=-1, keepdim=True) if len(X) else torch.ones_like(top)
        return problem.maximize(
            Scores(lambda rows: -torch.minimum(left, regret(rows)).mean(dim=0)), X, seed
        )


@dataclass
class Opening:
    """One method chooses the first points, another one goes on.

    Args:
        first: Chooses the first points.
        then: Goes on.
        number: How many points the first one chooses.
    """

    first: Method
    then: Method
    number: int = 3
    initial_design: bool = False

    @property
    def settings(self) -> str:
        """What, besides the name, the runs depend on."""
        return f"{getattr(self.then, 'settings', '')} {self.number}"

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Asks the method whose turn it is."""
        method = self.first if len(X) < self.number else self.then
        return method.suggest(problem, X, Y, seed)


def _contains(X: Tensor, x: Tensor) -> bool:
    return bool((x == X).all(dim=-1).any())
