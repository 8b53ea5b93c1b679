"""The methods of the adversarial study, made cheap: one rule for when to fit, the same for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.studies.methods import (
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

ALWAYS_UNTIL, EVERY = 10, 4
NUM_RESTARTS, MAX_ITER = 1, 60


@dataclass
class ThriftyOptimization:
    """LogEI on the pool; models are fitted at every step to ten points, then at every fourth.

    In between, hyperparameters and weights of the last fit stay.

    Args:
        build: Builds the model.
        initial_design: Whether the model needs the shared first points.
        options: Options of the fit.
    """

    build: Build
    initial_design: bool
    options: dict[str, Any] = field(default_factory=dict)
    _fitted: tuple[Tensor, dict[str, Tensor]] | None = field(default=None, repr=False)

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Fits the model, unless it is not its turn, and maximizes the acquisition."""
        if self.initial_design and len(Y) == 0:
            return RandomSearch().suggest(problem, X, Y, seed)
        if len(Y) >= ALWAYS_UNTIL and float(Y.max()) >= problem.best_known:
            # The regret is zero for good: whatever follows need not cost anything.
            return RandomSearch().suggest(problem, X, Y, seed)
        return problem.maximize(log_ei_or_ucb(self.model(problem, X, Y), Y), X, seed)

    def model(self, problem: Problem, X: Tensor, Y: Tensor) -> SingleTaskGP:
        """The model of the data, fitted or with the last fit's hyperparameters."""
        model = self.build(X, Y, problem)
        surplus = len(Y) - ALWAYS_UNTIL
        if surplus > 0 and surplus % EVERY and self._fitted and _begins_with(X, self._fitted[0]):
            parameters = dict(model.named_parameters())
            with torch.no_grad():
                for name, value in self._fitted[1].items():
                    parameters[name].copy_(value)
            return model.eval()
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **self.options)
        self._fitted = X.clone(), {n: p.detach().clone() for n, p in model.named_parameters()}
        return model


def _begins_with(X: Tensor, seen: Tensor) -> bool:
    """Whether points are those of the last fit and further ones: the same run."""
    return len(seen) < len(X) and torch.equal(seen, X[: len(seen)])


BOTORCHS: dict[str, Any] = {"optimizer_kwargs": {"options": {"maxiter": MAX_ITER}}}
OURS: dict[str, Any] = {"num_restarts": NUM_RESTARTS, **BOTORCHS}


def _transfer(model_class: Any) -> Method:
    return ThriftyOptimization(transfer(model_class), initial_design=False, options=OURS)


def plain() -> dict[str, Method]:
    """The method that ignores the history."""
    return {"plain GP": ThriftyOptimization(plain_gp, initial_design=True, options=BOTORCHS)}


def transferring() -> dict[str, Method]:
    """The methods that use the history."""
    return {
        "ScaML-GP": _transfer(ScaMLGP),
        "SHGP": _transfer(SequentialHierarchicalGP),
        "RGPE": _transfer(RankWeightedGP),
        "guarded": _transfer(GuardedTransferGP),
    }
