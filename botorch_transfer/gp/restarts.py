"""Fits of a target's hyperparameters from several starts.

``fit_gpytorch_mll`` fits every transfer model by :func:`fit_from_starts`. Each start minimizes the
objective of the model (``gp.objective``). If the objective has a closed form, all starts run at
once.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.optim.utils import sample_all_priors
from botorch.utils.context_managers import parameter_rollback_ctx
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.gp.objective import AutogradObjective, ClosedFormObjective, TargetObjective

#: Number of starts that are added if no start has a finite optimum.
_FURTHER_STARTS = 4


def fit_from_starts(
    mll: ExactMarginalLogLikelihood,
    num_restarts: int,
    seed: int,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
    **others: Any,
) -> None:
    """Fits a model from several starts and keeps the best optimum.

    The fit maximizes the marginal log likelihood plus the log hyperpriors. If the objective has a
    closed form, each member of a batch of models keeps its own best optimum. If an option is given
    that only BoTorch's optimizer supports, BoTorch's optimizer fits the model.

    Args:
        mll: The marginal log likelihood of a single-outcome model with data, in training mode.
        num_restarts: The number of starts that are drawn from the hyperpriors. One more start uses
            the current values.
        seed: The seed of the draws.
        options: ``{"maxiter": ...}``, or options of SciPy's optimizer.
        timeout_sec: The time in seconds after which all starts stop.
        **others: Further arguments of :func:`botorch.optim.fit.fit_gpytorch_mll_scipy`, such as
            ``callback=``.

    Raises:
        ModelFittingError: If no start has a finite optimum.
    """
    options = options or {}
    closed_form = getattr(mll.model, "closed_form", TargetObjective.of)
    only_botorchs = others or options.keys() - {"maxiter"}
    objective = None if only_botorchs else closed_form(mll)
    objective = objective or AutogradObjective(mll, **others)
    for more in (0, _FURTHER_STARTS):
        starts = _draw_starts(objective, num_restarts + more, seed)
        with parameter_rollback_ctx(dict(mll.named_parameters())):
            theta, value = objective.minimize(starts.flatten(0, 1), options, timeout_sec)
        least, best = value.reshape(starts.shape[:2]).min(dim=0)
        if bool(least.isfinite().all()):
            objective.write(theta.reshape(starts.shape)[best, torch.arange(len(best))])
            return
    raise ModelFittingError(
        f"No start leads to an optimum of {type(mll.model).__name__}: the covariance matrix is "
        "not positive definite, or the objective is NaN. Check the hyperpriors and the inputs "
        "for extreme scales, or use another kernel."
    )


def _draw_starts(
    objective: ClosedFormObjective | AutogradObjective, num_restarts: int, seed: int
) -> Tensor:
    """Returns the current values and draws from the hyperpriors, an ``S x B x k`` tensor.

    The draws are equal on all devices, because all draws are made on the CPU. If the model is on
    another device, its copy on the CPU is used. Some GPyTorch priors, such as ``LogNormalPrior``,
    draw on the CPU in any case.
    """
    mll, starts = objective.mll, [objective.read(objective.mll)]
    is_elsewhere = starts[0].device.type != "cpu"
    on_cpu = deepcopy(mll).cpu() if is_elsewhere and num_restarts > 0 else mll
    every = dict(on_cpu.named_parameters())
    with parameter_rollback_ctx(every), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for _ in range(num_restarts):
            with suppress(RuntimeError):  # a draw outside the bounds: the old value stays
                sample_all_priors(on_cpu.model)
            starts.append(objective.read(on_cpu).to(starts[0]))
    return torch.stack(starts)
