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
    """Random search: draws points uniformly, and ignores the history."""

    initial_design: bool = True

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Draws a random point."""
        return problem.draw(X, seed)


@dataclass(frozen=True)
class HistoryReplay:
    """Evaluates the best point of each source task in random order, then random points.

    This baseline shows whether a model of the history is better than the best old points.
    """

    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Draws a source task, and returns the task's best unseen point."""
        winners = [task.X[task.Y.argmax()].double() for task in as_datasets(problem.history)]
        fresh = [x for x in winners if not _contains(X, problem.nearest(x, X[:0]))]
        if not fresh:
            return RandomSearch().suggest(problem, X, Y, seed)
        generator = torch.Generator().manual_seed(seed)
        choice = int(torch.randint(len(fresh), (1,), generator=generator))
        return problem.nearest(fresh[choice], X)


class Scores(AcquisitionFunction):
    """Acquisition function with given scores of single rows.

    Args:
        score: A function from an `n x d` tensor of rows to `n` scores.
    """

    def __init__(self, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]
        self.score = score

    def forward(self, X: Tensor) -> Tensor:
        """Scores a `batch_shape x 1 x d` tensor of rows."""
        # Gradients are zero, so a gradient search keeps its best random row.
        scores = self.score(X.reshape(-1, X.shape[-1])).detach()
        return scores.reshape(X.shape[:-2]) + 0.0 * X.sum((-2, -1))


@dataclass(frozen=True)
class SortedRows:
    """Rows sorted by their mean rank in the source tasks.

    The rank of a row in a source task is the rank of the task's nearest row. This baseline shows
    whether a model is better than ten lines of pandas.
    """

    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Returns the best unseen row."""
        tasks = {str(i): task for i, task in enumerate(as_datasets(problem.history))}
        return problem.maximize(Scores(lambda rows: mean_rank(tasks, rows)), X, seed)


@dataclass(frozen=True)
class Portfolio:
    """Greedy portfolio of rows that complement each other on the source tasks.

    The next row minimizes the mean regret of the best row so far over the source tasks. Regrets are
    computed from the posterior means of the source GPs, and divided by the distance from each
    task's median to its best value.
    """

    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Returns the row that lowers the portfolio's mean regret most."""
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
    """Method that combines two methods: one chooses the first points, the other the later points.

    Args:
        first: The method that chooses the first points.
        then: The method that chooses the later points.
        number: The number of points that `first` chooses.
    """

    first: Method
    then: Method
    number: int = 3
    initial_design: bool = False

    @property
    def settings(self) -> str:
        """Description of the settings on which the runs depend, besides the name."""
        return f"{getattr(self.then, 'settings', '')} {self.number}"

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Calls the first or the second method."""
        method = self.first if len(X) < self.number else self.then
        return method.suggest(problem, X, Y, seed)


def _contains(X: Tensor, x: Tensor) -> bool:
    return bool((x == X).all(dim=-1).any())
