"""Bayesian optimization: fits a model to the evaluations, and maximizes an acquisition function."""

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
    """Options of model fits: their cost, and when hyperparameters are fitted again.

    Args:
        num_restarts: The number of starts of the package's models besides the current values; the
            default of each model if omitted. BoTorch's models have one start.
        max_iterations: The maximum number of L-BFGS iterations of a fit.
        growth: The growth factor of the number of points after which hyperparameters are fitted
            again. Until then, hyperparameters stay fixed, and the model is conditioned on the new
            points.
        warm: Whether a fit starts from the values of the last fit in the same run.
    """

    num_restarts: int | None = None
    max_iterations: int | None = None
    growth: float = 1.0
    warm: bool = False

    def options(self, model: SingleTaskGP) -> dict[str, Any]:
        """Returns the arguments of `fit_gpytorch_mll` for a model."""
        options: dict[str, Any] = {}
        if self.max_iterations is not None:
            options["optimizer_kwargs"] = {"options": {"maxiter": self.max_iterations}}
        if self.num_restarts is not None and hasattr(model, "custom_fit"):
            options["num_restarts"] = self.num_restarts
        return options


#: The default options of each model, with a fit at every step.
THOROUGH = Fitting()

#: For studies on few cores: fits at each of the first five points, then at 7, 9, 12, 15, 19, ...
THRIFTY = Fitting(num_restarts=1, max_iterations=60, growth=1.25)

#: For models that also fit the source tasks' hyperparameters: fits at 1, 2, 4, 8, 16, ... points
THRIFTY_JOINT = Fitting(num_restarts=0, max_iterations=40, growth=2.0, warm=True)


@dataclass
class BayesianOptimization:
    """Bayesian optimization with a model that is fitted to all evaluations.

    Args:
        build: A function that builds the model from `X` (`n x d`), `Y` (`n x 1`, finite) and the
            problem.
        acquire: A function that builds the acquisition function of the fitted model.
        initial_design: Whether a run starts with the shared initial points. If not, the model must
            work without target data.
        fitting: The options of model fits.
        settings: A description of the settings on which the runs depend, besides the method's name.
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
        # The state of a run is not copied to other processes.
        return {**self.__dict__, "fitted": None, "_last": None}

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Fits the model, and maximizes the acquisition function; failures get the worst value."""
        usable_X, usable_Y = with_failures_worst(X, Y)
        if self.initial_design and len(usable_Y) == 0:
            return RandomSearch().suggest(problem, X, Y, seed)
        self.fitted = self.model(problem, usable_X, usable_Y)
        acquisition = self.acquire(self.fitted, usable_Y, problem.reference(X))
        return problem.maximize(acquisition, X, seed)

    def model(self, problem: Problem, X: Tensor, Y: Tensor) -> SingleTaskGP:
        """Builds the model, and fits it, or sets the hyperparameters of the last fit."""
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
    """Hyperparameters of a fitted model, with the problem and the points of the fit."""

    problem: Problem
    X: Tensor
    values: dict[str, Tensor]

    @classmethod
    def of(cls, model: SingleTaskGP, problem: Problem, X: Tensor) -> _Fit:
        values = {name: value.detach().clone() for name, value in model.named_parameters()}
        return cls(problem, X.clone(), values)

    def precedes(self, problem: Problem, X: Tensor) -> bool:
        """Returns whether `X` extends the points of this fit in the same run."""
        n = len(self.X)
        return problem is self.problem and n < len(X) and torch.equal(X[:n], self.X)

    def give_to(self, model: SingleTaskGP) -> SingleTaskGP:
        """Sets the hyperparameters of a model with more points."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.values.items():
                parameters[name].copy_(value)
        for part in reversed(list(model.modules())):  # members before their average
            if isinstance(part, EnsembleGP | AveragedGP):  # weights depend on the data
                part.update_weights()
            elif isinstance(part, PopulationGP):
                part.update_scale()
        return model
