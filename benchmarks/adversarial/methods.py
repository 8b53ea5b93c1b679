"""The methods of the adversarial study, made cheap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.adversarial.verdicts import NUM_EVALUATIONS
from benchmarks.studies.methods import (
    THRIFTY,
    BayesianOptimization,
    Build,
    Method,
    RandomSearch,
    log_ei_or_ucb,
    plain_gp,
    transfer,
)
from benchmarks.studies.problems import Problem
from botorch_transfer import (
    GuardedTransferGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
)


@dataclass
class UntilFound(BayesianOptimization):
    """Bayesian optimization that costs nothing once the best point of the pool is found.

    The regret is zero for good then. The evaluations that the report is made of are always the
    model's.
    """

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Maximizes the acquisition, or takes any point."""
        if len(Y) >= NUM_EVALUATIONS and float(Y.max()) >= problem.best_known:
            return RandomSearch().suggest(problem, X, Y, seed)
        return super().suggest(problem, X, Y, seed)


def _method(build: Build, initial_design: bool = False) -> Method:
    return UntilFound(build, log_ei_or_ucb, initial_design, THRIFTY)


def _transfer(model_class: Any) -> Method:
    return _method(transfer(model_class))


def plain() -> dict[str, Method]:
    """The method that ignores the history."""
    return {"plain GP": _method(plain_gp, initial_design=True)}


def transferring() -> dict[str, Method]:
    """The methods that use the history."""
    return {
        "ScaML-GP": _transfer(ScaMLGP),
        "SHGP": _transfer(SequentialHierarchicalGP),
        "RGPE": _transfer(RankWeightedGP),
        "guarded": _transfer(GuardedTransferGP),
    }
