"""Bayesian optimization: a model fitted to the evaluations, and the maximizer of an acquisition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.studies.methods.acquisitions import Acquire
from benchmarks.studies.methods.base import with_failures_worst
from benchmarks.studies.methods.baselines import RandomSearch
from benchmarks.studies.problems import Problem
from botorch_transfer import PopulationGP
from botorch_transfer.average.base import AveragedGP
from botorch_transfer.sources.ensembles import EnsembleGP

Build = Callable[[Tensor, Tensor, Problem], SingleTaskGP]


@dataclass(frozen=True)
class Fitting:
    """How much a fit may cost, and when there is one.

    Args:
        num_restarts: Starts of the package's models besides the present values; their own default
            if omitted. BoTorch's models have one start.
        max_iterations: Iterations of L-BFGS a fit.
        growth: Hyperparameters are fitted anew once there are this many times as many points as at
            the last fit. In between they stay, and the model only gets the new points.
        warm: Whether a fit starts from the values of the last one in the same run.
    """

    num_restarts: int | None = None
    max_iterations: int | None = None
    growth: float = 1.0
    warm: bool = False

    def options(self, model: SingleTaskGP) -> dict[str, Any]:
        """The arguments of `fit_gpytorch_mll` for a model."""
        options: dict[str, Any] = {}
        if self.max_iterations is not None:
            options["optimizer_kwargs"] = {"options": {"maxiter": self.max_iterations}}
        if self.num_restarts is not None and hasattr(model, "custom_fit"):
            options["num_restarts"] = self.num_restarts
        return options


#: The models' own defaults at every step.
THOROUGH = Fitting()

#: For studies on few cores: at each of the first five points, then at 7, 9, 12, 15, 19, ...
THRIFTY = Fitting(num_restarts=1, max_iterations=60, growth=1.25)

#: The same for models that fit the source tasks' hyperparameters, too: at 1, 2, 4, 8, 16, ...
THRIFTY_JOINT = Fitting(num_restarts=0, max_iterations=40, growth=2.0, warm=True)


@dataclass
class BayesianOptimization:
    """A model fitted to all evaluations, and the point where an acquisition of it is largest.

    Args:
        build: Builds the model of `X` (`n x d`), `Y` (`n x 1`, finite) and the problem.
        acquire: Builds the acquisition of the fitted model.
        initial_design: Whether the model needs the shared first points; without, it has to work
            with no target data at all.
        fitting: How the model is fitted.
        settings: What, besides the method's name, its runs depend on: the settings' names.
    """

    build: Build
    acquire: Acquire
    initial_design: bool
    fitting: Fitting = THOROUGH
    settings: str = ""
    #: The model of the last suggestion.
    fitted: SingleTaskGP | None = field(default=None, init=False, repr=False, compare=False)
    _last: _Fit | None = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # What belongs to a run stays where the run is.
        return {**self.__dict__, "fitted": None, "_last": None}

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Fits the model and maximizes the acquisition; failures count as the worst value yet."""
        usable_X, usable_Y = with_failures_worst(X, Y)
        if self.initial_design and len(usable_Y) == 0:
            return RandomSearch().suggest(problem, X, Y, seed)
        self.fitted = self.model(problem, usable_X, usable_Y)
        acquisition = self.acquire(self.fitted, usable_Y, problem.reference(X))
        return problem.maximize(acquisition, X, seed)

    def model(self, problem: Problem, X: Tensor, Y: Tensor) -> SingleTaskGP:
        """The model of the data, fitted or, if it is too early, with the last fit's values."""
        model = self.build(X, Y, problem)
        last = self._last if self._last and self._last.precedes(problem, X) else None
        if last and len(X) < self.fitting.growth * len(last.X):
            return last.give_to(model).eval()
        if last and self.fitting.warm:
            last.give_to(model)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll, **self.fitting.options(model))
        if self.fitting.growth > 1 or self.fitting.warm:
            self._last = _Fit.of(model, problem, X)
        return model


@dataclass(frozen=True)
class _Fit:
    """The hyperparameters of a fitted model, and what it was fitted to."""

    problem: Problem
    X: Tensor
    values: dict[str, Tensor]

    @classmethod
    def of(cls, model: SingleTaskGP, problem: Problem, X: Tensor) -> _Fit:
        values = {name: value.detach().clone() for name, value in model.named_parameters()}
        return cls(problem, X.clone(), values)

    def precedes(self, problem: Problem, X: Tensor) -> bool:
        """Whether points go on from those of the fit, in the same run."""
        n = len(self.X)
        return problem is self.problem and n < len(X) and torch.equal(X[:n], self.X)

    def give_to(self, model: SingleTaskGP) -> SingleTaskGP:
        """Sets the hyperparameters of a model that has some more points."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.values.items():
                parameters[name].copy_(value)
        for part in reversed(list(model.modules())):  # members before their average
            if isinstance(part, EnsembleGP | AveragedGP):  # weights follow the data
                part.update_weights()
            elif isinstance(part, PopulationGP):
                part.update_scale()
        return model
