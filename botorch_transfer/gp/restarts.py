"""Fits a target's hyperparameters from several starts.

Read it for how ``fit_gpytorch_mll`` fits every transfer model: all starts at once in closed form
(:class:`~.objective.TargetObjective`), or one after another by BoTorch's own fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from time import monotonic
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.optim.utils import get_parameters, sample_all_priors
from botorch.utils.context_managers import parameter_rollback_ctx
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from numpy import ndarray
from torch import Tensor

from botorch_transfer._botorch import fit_fallback
from botorch_transfer.gp.objective import TargetObjective, single_threaded_scipy

_FURTHER_STARTS = 4
"""How many more starts BoTorch's fit gets where the numerics of all break down."""

_MAX_ITERATIONS = 15000
"""As in BoTorch's optimizer."""


def fit_from_starts(
    mll: ExactMarginalLogLikelihood, num_restarts: int, seed: int, **optimizer_kwargs: Any
) -> None:
    """Maximizes a marginal log likelihood, hyperpriors included, and keeps the best optimum.

    Most models have a closed form, which serves all starts at once; in a batch of models, each
    member keeps its own best. Any other model is fitted by BoTorch's own fit, one start after
    another, and so is any whose optimizer is asked for more than a number of iterations or a
    timeout, or where the numerics of all starts break down.

    Args:
        mll: The marginal log likelihood of a single-outcome model with target data, in training
            mode.
        num_restarts: The number of starts drawn from the hyperpriors, besides the present values.
        seed: The seed of these draws.
        **optimizer_kwargs: See :func:`botorch.optim.fit.fit_gpytorch_mll_scipy`.

    Raises:
        ModelFittingError: If no start leads to an optimum.
    """
    parameters = get_parameters(mll, requires_grad=True)
    starts = _draw_starts(mll, parameters, num_restarts, seed)
    found = _maximize_in_closed_form(mll, starts, **optimizer_kwargs)
    if found is None:
        for more in (0, _FURTHER_STARTS):
            starts = _draw_starts(mll, parameters, num_restarts + more, seed)
            if _fit_one_by_one(mll, parameters, starts, optimizer_kwargs):
                return
        raise ModelFittingError(
            f"No start leads to an optimum of {type(mll.model).__name__}: its covariance matrix is "
            "not positive definite, or its objective is NaN. Check its hyperpriors and the inputs "
            "for extreme scales, or use another kernel."
        )
    optima, value = found
    best = value.argmax(dim=0, keepdim=True)
    for name, parameter in parameters.items():
        index = best.reshape(*best.shape, *[1] * (parameter.dim() + 1 - best.dim()))
        chosen = optima[name].gather(0, index.expand(1, *parameter.shape))
        parameter.data.copy_(chosen.squeeze(0))


def _maximize_in_closed_form(
    mll: ExactMarginalLogLikelihood,
    starts: dict[str, Tensor],
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
    **others: Any,
) -> tuple[dict[str, Tensor], Tensor] | None:
    """Optimizes all starts at once, without GPyTorch.

    Returns:
        The optima and their values, starts first. ``None`` where the model has no closed form,
        BoTorch's optimizer is asked for more, or the numerics of all starts break down.
    """
    options = options or {}
    for_botorch = others or options.keys() - {"maxiter"}
    closed_form = getattr(mll.model, "closed_form", TargetObjective.of)
    objective = None if for_botorch else closed_form(mll)
    if objective is None:
        return None
    max_iter = options.get("maxiter", _MAX_ITERATIONS)
    found = objective.maximize(starts, max_iter, _stopping_in_time(timeout_sec))
    return None if bool(found[1].isneginf().all(dim=0).any()) else found


def _stopping_in_time(timeout_sec: float | None) -> Callable[[ndarray], None] | None:
    """Makes a callback that stops every start in time."""
    if timeout_sec is None:
        return None
    deadline = monotonic() + timeout_sec

    def stop_in_time(x: ndarray) -> None:
        if monotonic() > deadline:
            raise StopIteration

    return stop_in_time


def _fit_one_by_one(
    mll: ExactMarginalLogLikelihood,
    parameters: dict[str, Any],
    starts: dict[str, Tensor],
    optimizer_kwargs: dict[str, Any],
) -> bool:
    """Fits by BoTorch from one start after another and keeps the best optimum, if there is one.

    BoTorch would draw the starts where the model is, and not all hyperpriors can.
    """
    # LinAlgError is what PyTorch raises where linear_operator does not look.
    breakdowns = NotPSDError, NanError, torch.linalg.LinAlgError
    best, optimum = -math.inf, {name: each.detach().clone() for name, each in parameters.items()}
    for start in range(len(next(iter(starts.values())))):
        for name, parameter in parameters.items():
            parameter.data.copy_(starts[name][start])
        try:
            with single_threaded_scipy():
                fit_fallback(
                    mll,
                    optimizer_kwargs=optimizer_kwargs,
                    max_attempts=1,
                    pick_best_of_all_attempts=True,  # that of one: NaN is none
                    warning_handler=lambda _: True,  # an optimum of few iterations is one, too
                    caught_exception_types=breakdowns,
                )
            with torch.no_grad():
                model = mll.train().model
                value = float(mll(model(*model.train_inputs), model.train_targets).sum())
        except (ModelFittingError, *breakdowns):
            continue
        if value > best:
            best = value
            optimum = {name: each.detach().clone() for name, each in parameters.items()}
    for name, parameter in parameters.items():
        parameter.data.copy_(optimum[name])
    return best > -math.inf


def _draw_starts(
    mll: ExactMarginalLogLikelihood,
    parameters: dict[str, Tensor],
    num_restarts: int,
    seed: int,
) -> dict[str, Tensor]:
    """Stacks the present values and draws along a new first dimension.

    The CPU draws from the hyperpriors, for a model elsewhere in a copy. The draws are thus the same
    on every device. Also, some of GPyTorch's priors, such as ``LogNormalPrior``, draw on the CPU
    wherever the model is.
    """
    drawn = {name: [parameter.detach().clone()] for name, parameter in parameters.items()}
    is_elsewhere = any(parameter.device.type != "cpu" for parameter in parameters.values())
    on_cpu = deepcopy(mll).cpu() if is_elsewhere and num_restarts > 0 else mll
    copies = get_parameters(on_cpu, requires_grad=True)
    every = dict(on_cpu.named_parameters())
    with parameter_rollback_ctx(every), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for _ in range(num_restarts):
            sample_all_priors(on_cpu.model)
            for name, parameter in parameters.items():
                drawn[name].append(copies[name].detach().to(parameter, copy=True))
    return {name: torch.stack(values) for name, values in drawn.items()}
