"""Fits of a target's hyperparameters from several starts.

``fit_gpytorch_mll`` fits every transfer model here. All starts run at once and minimize the
objective of the model (:class:`~.objective.ModelObjective`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from operator import itemgetter
from time import monotonic
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.utils import get_parameters, sample_all_priors
from botorch.utils.context_managers import parameter_rollback_ctx
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer._botorch import fit_fallback
from botorch_transfer.gp.objective import (
    AutogradObjective,
    ModelObjective,
    TargetObjective,
    single_threaded_scipy,
)

#: The number of starts that are added if no start is numerically stable.
_FURTHER_STARTS = 4

#: Default maximum number of iterations, as in BoTorch's optimizer.
_MAX_ITERATIONS = 15000


def fit_from_starts(
    mll: ExactMarginalLogLikelihood,
    num_restarts: int,
    seed: int,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
    callback: Callable[[dict[str, Tensor], OptimizationResult], None] | None = None,
    **others: Any,
) -> None:
    """Maximizes a marginal log likelihood, hyperpriors included, and keeps the best optimum.

    In a batch of models, each member keeps its own best optimum if the objective has a closed form.
    Options that only BoTorch's optimizer supports select BoTorch's fit.

    Args:
        mll: The marginal log likelihood of a single-outcome model with data, in training mode.
        num_restarts: The number of starts that are drawn from the hyperpriors. One more start uses
            the present values.
        seed: The seed of the draws.
        options: ``{"maxiter": ...}``, or options of SciPy's optimizer.
        timeout_sec: The time in seconds after which all starts stop.
        callback: Function that is called after each iteration of all starts. Its arguments are the
            parameters of the best start by name, and BoTorch's ``OptimizationResult`` of this
            start. The function may raise ``StopIteration`` to end the fit.
        **others: Further arguments of :func:`botorch.optim.fit.fit_gpytorch_mll_scipy`.

    Raises:
        ModelFittingError: If no start has a finite optimum.
    """
    options = options or {}
    is_batch = mll.model.train_targets.dim() > 1
    if others or options.keys() - {"maxiter"} or (callback is not None and is_batch):
        given = {"options": options, "timeout_sec": timeout_sec, "callback": callback, **others}
        with single_threaded_scipy(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            fit_fallback(
                mll,
                optimizer_kwargs=given,
                max_attempts=1 + num_restarts,
                pick_best_of_all_attempts=True,
                warning_handler=lambda _: True,  # accepts an optimum after few iterations
            )
        return
    closed_form = getattr(mll.model, "closed_form", TargetObjective.of)
    objective = closed_form(mll) or AutogradObjective(mll)
    for more in (0, _FURTHER_STARTS):
        starts = _draw_starts(objective, num_restarts + more, seed)
        with parameter_rollback_ctx(dict(mll.named_parameters())):
            theta, value = objective.minimize(
                starts.flatten(0, 1),
                options.get("maxiter", _MAX_ITERATIONS),
                _each_iteration(objective, callback, timeout_sec),
            )
        least, best = value.reshape(starts.shape[:2]).min(dim=0)
        if bool(least.isfinite().all()):
            objective.write(theta.reshape(starts.shape)[best, torch.arange(len(best))])
            return
    raise ModelFittingError(
        f"No start leads to an optimum of {type(mll.model).__name__}: the covariance matrix is "
        "not positive definite, or the objective is NaN. Check the hyperpriors and the inputs "
        "for extreme scales, or use another kernel."
    )


def _each_iteration(
    objective: ModelObjective, callback: Callable[..., None] | None, timeout_sec: float | None
) -> Callable[..., None] | None:
    """Builds the function that the optimizer calls after each iteration of each start.

    The function stops every start after ``timeout_sec``. It calls ``callback`` once per iteration,
    as soon as one start has ended the iteration.
    """
    if callback is None and timeout_sec is None:
        return None
    begin, step, iterations = monotonic(), 0, Counter[int]()
    best: tuple[float, Any] = (math.inf, None)

    def after(intermediate_result: Any) -> None:  # SciPy requires this name of the argument
        nonlocal best, step
        x, seconds = intermediate_result.x, monotonic() - begin
        if timeout_sec is not None and seconds > timeout_sec:
            raise StopIteration
        iterations[id(x)] += 1  # each start has its own array
        best = min(best, (float(intermediate_result.fun), x.copy()), key=itemgetter(0))
        if callback is not None and iterations[id(x)] > step:
            objective.write(torch.from_numpy(best[1]).unsqueeze(0))
            result = OptimizationResult(step + 1, best[0], OptimizationStatus.RUNNING, seconds)
            callback(get_parameters(objective.mll, requires_grad=True), result)
            step += 1  # not reached if the callback stops, so that it also stops the other starts

    return after


def _draw_starts(objective: ModelObjective, num_restarts: int, seed: int) -> Tensor:
    """Returns the present values and draws from the hyperpriors, an ``S x B x k`` tensor.

    All draws are made on the CPU, from a copy if the model is on another device. The draws are
    therefore equal on all devices. Some GPyTorch priors, such as ``LogNormalPrior``, draw on the
    CPU in any case.
    """
    mll, starts = objective.mll, [objective.read(objective.mll)]
    is_elsewhere = starts[0].device.type != "cpu"
    on_cpu = deepcopy(mll).cpu() if is_elsewhere and num_restarts > 0 else mll
    every = dict(on_cpu.named_parameters())
    with parameter_rollback_ctx(every), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for _ in range(num_restarts):
            with suppress(RuntimeError):  # if a draw violates the bounds; the value then stays
                sample_all_priors(on_cpu.model)
            starts.append(objective.read(on_cpu).to(starts[0]))
    return torch.stack(starts)
