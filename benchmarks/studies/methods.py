"""The methods that studies compare: each suggests the next point to evaluate.

A transfer model of the package joins with one line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    UpperConfidenceBound,
)
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.studies.problems import Problem
from botorch_transfer import ScaMLGP
from botorch_transfer.data import as_datasets

PRIOR_BETA = 9.0  # three standard deviations, as in ScaML-GP's paper

Build = Callable[[Tensor, Tensor, Problem], SingleTaskGP]
Acquire = Callable[[SingleTaskGP, Tensor], AcquisitionFunction]


class Method(Protocol):
    """What proposes evaluations."""

    @property
    def initial_design(self) -> bool:
        """Whether a run starts with the points that all such methods share."""
        ...

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Proposes the next point.

        Args:
            problem: The problem, for its history and its allowed points; never for its values.
            X: An `n x d` tensor of the points evaluated so far.
            Y: An `n x 1` tensor of their values, to be maximized; NaN where they failed.
            seed: The seed of this step; the same for all methods.

        Returns:
            A `d` tensor.
        """
        ...


@dataclass(frozen=True)
class RandomSearch:
    """Points drawn uniformly, history ignored."""

    initial_design: bool = True

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Draws a point."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(problem.dim, generator=generator, dtype=torch.double)
        return problem.nearest(x, X)


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


@dataclass(frozen=True)
class BayesianOptimization:
    """A model fitted to all evaluations, and the point where an acquisition of it is largest.

    Args:
        build: Builds the model of `X` (`n x d`), `Y` (`n x 1`, finite) and the problem.
        acquire: Builds the acquisition of the fitted model and `Y`.
        initial_design: Whether the model needs the shared first points; without, it has to work
            with no target data at all.
    """

    build: Build
    acquire: Acquire
    initial_design: bool

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Fits the model and maximizes the acquisition; failures count as the worst value yet."""
        usable_X, usable_Y = with_failures_worst(X, Y)
        if self.initial_design and len(usable_Y) == 0:
            return RandomSearch().suggest(problem, X, Y, seed)
        model = self.build(usable_X, usable_Y, problem)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return problem.maximize(self.acquire(model, usable_Y), X, seed)


def with_failures_worst(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Give failed evaluations the worst finite value; drop them while there is none.

    Args:
        X: An `n x d` tensor of points.
        Y: An `n x 1` tensor of values, NaN where the evaluation failed.

    Returns:
        Points and finite values.
    """
    finite = Y.isfinite()
    if not bool(finite.any()):
        return X[:0], Y[:0]
    return X, torch.where(finite, Y, Y[finite].min())


def log_ei_or_ucb(model: SingleTaskGP, Y: Tensor) -> AcquisitionFunction:
    """The acquisition all methods share: LogEI, and UCB while there is no value to improve."""
    if len(Y) == 0:
        return UpperConfidenceBound(model, beta=PRIOR_BETA)
    return LogExpectedImprovement(model, best_f=Y.max())


def plain_gp(X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    """BoTorch's default model, history ignored."""
    return SingleTaskGP(X, Y)


def transfer(model_class: Callable[..., SingleTaskGP]) -> Build:
    """A model class of the package, given the raw history; it pre-trains once a history."""

    def build(X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
        return model_class(X, Y, problem.history)

    return build


def _contains(X: Tensor, x: Tensor) -> bool:
    return bool((x == X).all(dim=-1).any())


METHODS: dict[str, Method] = {
    "ScaML-GP": BayesianOptimization(transfer(ScaMLGP), log_ei_or_ucb, initial_design=False),
    "plain GP": BayesianOptimization(plain_gp, log_ei_or_ucb, initial_design=True),
    "best of history": HistoryReplay(),
    "random search": RandomSearch(),
}
