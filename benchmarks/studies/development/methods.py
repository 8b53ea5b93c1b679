"""The models of the development studies, and how each scores a pool of points.

A model joins with one line in `METHODS`. Each is fitted anew at every step as by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.studies.problems import History
from botorch_transfer import (
    GuardedTransferGP,
    PopulationGP,
    RankWeightedGP,
    ScaMLGP,
    TransferGP,
)
from botorch_transfer.acquisition import AveragedImprovement
from botorch_transfer.data import as_datasets

Score = Callable[[Any, Tensor, Tensor], Tensor]
"""Scores an `N x d` pool by a fitted model and its `n x 1` outcomes; the largest is taken."""


def log_ei(model: SingleTaskGP, Y: Tensor, pool: Tensor) -> Tensor:
    """LogEI of a pool; while there is no value to improve on, the posterior mean.

    Args:
        model: The model.
        Y: An `n x 1` tensor of the outcomes so far.
        pool: An `N x d` tensor of points.

    Returns:
        An `N` tensor of scores.
    """
    points = pool.unsqueeze(-2)
    if len(Y) == 0:
        return model.posterior(points).mean[:, 0, 0]
    return LogExpectedImprovement(model, best_f=Y.max())(points)


def averaged(model: TransferGP, Y: Tensor, pool: Tensor) -> Tensor:
    """The average of what the members expect, each in units of its largest value over the pool.

    Args:
        model: The model.
        Y: An `n x 1` tensor of the outcomes so far.
        pool: An `N x d` tensor of points.

    Returns:
        An `N` tensor of scores; without outcomes, the posterior mean.
    """
    if len(Y) == 0:
        return log_ei(model, Y, pool)
    return AveragedImprovement.from_model(model, Y.max(), pool)(pool.unsqueeze(-2))


@dataclass(frozen=True)
class PoolMethod:
    """A model, what it is pre-trained from, and how it scores points.

    Args:
        build: Builds the model of `X` (`n x d`), `Y` (`n x 1`) and what `pretrain` gave.
        pretrain: Turns the history into what the model is built with at every step; `None` for a
            method that ignores the history.
        score: Scores the pool.
        num_random: The number of random points that a run starts with.
    """

    build: Callable[[Tensor, Tensor, Any], SingleTaskGP]
    pretrain: Callable[[History], Any] | None
    score: Score = log_ei
    num_random: int = 0

    def model(self, X: Tensor, Y: Tensor, prior: Any) -> SingleTaskGP:
        """Builds and fits the model."""
        model = self.build(X, Y, prior)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model


def plain_gp(X: Tensor, Y: Tensor, prior: None) -> SingleTaskGP:
    """BoTorch's default model."""
    return SingleTaskGP(X, Y)


def transfer(model_class: Any, score: Score = log_ei) -> PoolMethod:
    """A model of the package with the prior that it makes of the raw history.

    Args:
        model_class: Its class.
        score: Scores the pool.

    Returns:
        The method; it pre-trains once a run.
    """
    return PoolMethod(model_class, partial(_prior, model_class), score)


def _prior(model_class: Any, history: History) -> Any:
    X = as_datasets(history)[0].X[:0]
    return model_class(X, X[:, :1], history).prior


METHODS: Mapping[str, PoolMethod] = MappingProxyType(
    {
        "gp": PoolMethod(plain_gp, None, num_random=2),
        "scaml": transfer(ScaMLGP),
        "rgpe": transfer(RankWeightedGP),
        "guarded": transfer(GuardedTransferGP),
        "population": transfer(PopulationGP),
        "transfer": transfer(TransferGP),
        "transfer_average": transfer(TransferGP, averaged),
    }
)
"""The methods by name."""
