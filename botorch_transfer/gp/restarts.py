"""Fits a target's hyperparameters from several starts.

Read it for how ``fit_gpytorch_mll`` fits every transfer model: all starts at once, by the objective
of the model (:class:`~.objective.ModelObjective`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from time import monotonic
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.optim.utils import sample_all_priors
from botorch.utils.context_managers import parameter_rollback_ctx
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy import ndarray
from torch import Tensor

from botorch_transfer._botorch import fit_fallback
from botorch_transfer.gp.objective import (
    AutogradObjective,
    ModelObjective,
    TargetObjective,
    single_threaded_scipy,
)

_FURTHER_STARTS = 4
"""The number of starts that are added if the numerics of all starts break down."""

_MAX_ITERATIONS = 15000
"""As in BoTorch's optimizer."""


def fit_from_starts(
    mll: ExactMarginalLogLikelihood,
    num_restarts: int,
    seed: int,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
    **others: Any,
) -> None:
    """Maximizes a marginal log likelihood, hyperpriors included, and keeps the best optimum.

    In a batch of models, each member keeps its own best if the objective has a closed form. Options
    that only BoTorch's optimizer has select BoTorch's own fit.

    Args:
        mll: The marginal log likelihood of a single-outcome model with data, in training mode.
        num_restarts: The number of starts drawn from the hyperpriors, besides the present values.
        seed: The seed of these draws.
        options: ``{"maxiter": ...}``, or options of SciPy's optimizer.
        timeout_sec: The time in seconds after which all starts stop where they are.
        **others: Further arguments of :func:`botorch.optim.fit.fit_gpytorch_mll_scipy`.

    Raises:
        ModelFittingError: If no start leads to an optimum.
    """
    options = options or {}
    if others or options.keys() - {"maxiter"}:
        arguments = {"options": options, "timeout_sec": timeout_sec, **others}
        _fit_by_botorch(mll, num_restarts, seed, arguments)
        return
    closed_form = getattr(mll.model, "closed_form", TargetObjective.of)
    objective = closed_form(mll) or AutogradObjective(mll)
    for more in (0, _FURTHER_STARTS):
        starts = _draw_starts(objective, num_restarts + more, seed)
        with parameter_rollback_ctx(dict(mll.named_parameters())):
            theta, value = objective.minimize(
                starts.flatten(0, 1),
                options.get("maxiter", _MAX_ITERATIONS),
                _stopping_in_time(timeout_sec),
            )
        least, best = value.reshape(starts.shape[:2]).min(dim=0)
        if bool(least.isfinite().all()):
            objective.write(theta.reshape(starts.shape)[best, torch.arange(len(best))])
            return
    raise ModelFittingError(
        f"No start leads to an optimum of {type(mll.model).__name__}: its covariance matrix is "
        "not positive definite, or its objective is NaN. Check its hyperpriors and the inputs "
        "for extreme scales, or use another kernel."
    )


def _fit_by_botorch(
    mll: ExactMarginalLogLikelihood, num_restarts: int, seed: int, optimizer_kwargs: dict[str, Any]
) -> None:
    """Fits by BoTorch's own optimizer, one start after another, and keeps the best optimum."""
    with single_threaded_scipy(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        fit_fallback(
            mll,
            optimizer_kwargs=optimizer_kwargs,
            max_attempts=1 + num_restarts,
            pick_best_of_all_attempts=True,
            warning_handler=lambda _: True,  # an optimum of few iterations is one, too
        )


def _stopping_in_time(timeout_sec: float | None) -> Callable[[ndarray], None] | None:
    """Makes a callback that stops every start in time."""
    if timeout_sec is None:
        return None
    deadline = monotonic() + timeout_sec

    def stop(x: ndarray) -> None:
        if monotonic() > deadline:
            raise StopIteration

    return stop


def _draw_starts(objective: ModelObjective, num_restarts: int, seed: int) -> Tensor:
    """Draws starts after the present values, an ``S x B x k`` tensor.

    The CPU draws from the hyperpriors, for a model elsewhere in a copy. The draws are thus the same
    on every device. Also, some of GPyTorch's priors, such as ``LogNormalPrior``, draw on the CPU
    wherever the model is.
    """
    mll, starts = objective.mll, [objective.read(objective.mll)]
    is_elsewhere = starts[0].device.type != "cpu"
    on_cpu = deepcopy(mll).cpu() if is_elsewhere and num_restarts > 0 else mll
    every = dict(on_cpu.named_parameters())
    with parameter_rollback_ctx(every), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for _ in range(num_restarts):
            sample_all_priors(on_cpu.model)
            starts.append(objective.read(on_cpu).to(starts[0]))
    return torch.stack(starts)
