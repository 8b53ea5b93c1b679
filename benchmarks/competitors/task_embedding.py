"""Regressions on inputs joined with a learned embedding of their task [Wang2024hyperbo].

Section 7.2 says it of MIMO and RFGP alike: following Springenberg et al. (2016), a 5-dimensional
embedding of each task is learned together with the regression, and added to its inputs; the next
point maximizes the upper confidence bound with 1.8 deviations. The paper trains anew for 1,000
epochs of Adam in each step, with batches of 64. Ours is thrifty: a competitor is trained on the
history once, with batches of the same size and larger learning rates, and goes on from there for a
few steps on the history and the target together. Ours are also the units, those of RM-GP-UCB here
(source tasks standardized one by one, the target by all outcomes together), and the target's
embedding where it has no points, the mean of the others.

[Wang2024hyperbo]: Z. Wang et al. Pre-trained Gaussian Processes for Bayesian Optimization.
JMLR 2024.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, Self

import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.sampling import manual_seed
from botorch.utils.transforms import normalize
from gpytorch.distributions import MultivariateNormal
from torch import Tensor, nn

from benchmarks.competitors.competitor import Competitor, History
from botorch_transfer.data import as_datasets
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.outcome_transforms import PooledStandardize

EMBEDDING = 5
BATCH_SIZE = 64
COEFFICIENT = 1.8


class Rows(NamedTuple):
    """Evaluations of several tasks.

    Args:
        X: An `N x d` tensor of inputs in the unit cube.
        Y: An `N` tensor of outcomes, standardized.
        task: An `N` tensor: each one's task, from 0.
    """

    X: Tensor
    Y: Tensor
    task: Tensor

    def draw(self, *shape: int) -> Rows:
        """Draws rows with replacement."""
        chosen = torch.randint(len(self.Y), shape)
        return Rows(*(part[chosen] for part in self))


class EmbeddedRegression(nn.Module, ABC):
    """A regression with an embedding of each task.

    Args:
        num_tasks: The number of source tasks; the target comes after them.
    """

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(num_tasks + 1, EMBEDDING))

    def joined(self, X: Tensor, task: Tensor) -> Tensor:
        """Adds the tasks' embeddings to `... x d` inputs of a `...` tensor of tasks."""
        return torch.cat([X, self.embedding[task]], dim=-1)

    @abstractmethod
    def loss(self, rows: Rows) -> Tensor:
        """The loss of a batch that is drawn of the rows."""

    @abstractmethod
    def condition(self, rows: Rows) -> None:
        """Prepares predictions given all rows, once training is over."""

    @abstractmethod
    def forward(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts.

        Args:
            Z: A `... x q x k` tensor of joined inputs.

        Returns:
            The mean, `... x q`, and the covariance, `... x q x q`.
        """


class EmbeddedCompetitor(Competitor):
    """A method that maximizes the upper confidence bound of such a regression.

    Args:
        regression: The regression, trained on the history.
        rows: The history.
        units: What brings the target's outcomes to the history's units.
        bounds: A `2 x d` tensor of the search space's bounds.
        seed: The seed of the batches.
    """

    needs_data = False
    steps: ClassVar[Sequence[tuple[float, int]]]
    """Learning rates of Adam on the history, and how many steps at each."""
    more_steps: ClassVar[tuple[float, int]]
    """The same of each evaluation."""

    def __init__(
        self,
        regression: EmbeddedRegression,
        rows: Rows,
        units: PooledStandardize,
        bounds: Tensor,
        seed: int,
    ) -> None:
        self.regression = regression
        self.rows = rows
        self.units = units
        self.bounds = bounds
        self.seed = seed

    @classmethod
    @abstractmethod
    def new_regression(cls, dim: int, num_tasks: int) -> EmbeddedRegression:
        """Makes an untrained regression; what is random about it follows PyTorch's generator."""

    @classmethod
    def build(cls, history: History, bounds: Tensor, seed: int) -> Self:
        """Trains the regression on the history."""
        tasks = PaddedTasks.from_datasets(as_datasets(history)).double()
        standard = tasks.standardize(*tasks.moments())
        rows = Rows(
            normalize(tasks.X[tasks.mask].to(bounds), bounds),
            standard.Y[tasks.mask].to(bounds),
            tasks.mask.nonzero()[:, 0],
        )
        with manual_seed(seed):
            regression = cls.new_regression(bounds.shape[-1], len(tasks.X)).to(bounds)
            for rate, steps in cls.steps:
                train(regression, rows, rate, steps)
        with torch.no_grad():
            regression.embedding[-1] = regression.embedding[:-1].mean(dim=0)
        units = PooledStandardize(tasks.Y[tasks.mask].to(bounds), True)
        return cls(regression, rows, units, bounds, seed)

    def acquisition(self, train_X: Tensor, train_Y: Tensor) -> AcquisitionFunction:
        """The upper confidence bound."""
        return UpperConfidenceBound(self.model(train_X, train_Y), beta=COEFFICIENT**2)

    def model(self, train_X: Tensor, train_Y: Tensor) -> EmbeddedModel:
        """The model of the target, trained further on its points."""
        regression, rows = deepcopy(self.regression), self.rows
        if len(train_Y):
            Y = deepcopy(self.units).train()(train_Y.to(self.bounds))[0]
            target = torch.full((len(Y),), len(regression.embedding) - 1)
            own = normalize(train_X.to(self.bounds), self.bounds), Y.squeeze(-1), target
            rows = Rows(*(torch.cat(pair) for pair in zip(rows, own, strict=True)))
            with manual_seed(self.seed):
                train(regression, rows, *self.more_steps)
        with torch.no_grad():
            regression.condition(rows)
        return EmbeddedModel(regression.requires_grad_(False), self.bounds)


def train(regression: EmbeddedRegression, rows: Rows, rate: float, steps: int) -> None:
    """Trains a regression by Adam."""
    optimizer = torch.optim.Adam(regression.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        regression.loss(rows).backward()
        optimizer.step()


class EmbeddedModel(Model):
    """The target's outcomes in the history's units, noise left out or not as the regression does.

    Args:
        regression: The regression, conditioned.
        bounds: A `2 x d` tensor of the search space's bounds.
    """

    def __init__(self, regression: EmbeddedRegression, bounds: Tensor) -> None:
        super().__init__()
        self.regression = regression
        self.bounds = bounds

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """Empty."""
        return torch.Size()

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> GPyTorchPosterior:
        """The joint distribution at a `batch_shape x q x d` tensor of points."""
        target = torch.full(X.shape[:-1], len(self.regression.embedding) - 1)
        Z = self.regression.joined(normalize(X, self.bounds), target)
        return GPyTorchPosterior(MultivariateNormal(*self.regression(Z)))
