"""Fits a target's hyperparameters from several starts, all in one batched optimization.

Read it for how ``fit_gpytorch_mll`` fits every transfer model: in closed form (``target_fit``), or
by BoTorch's optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from time import monotonic
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.gp_regression import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.optim.utils import get_parameters, sample_all_priors
from gpytorch.kernels import Kernel
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from numpy import ndarray
from torch import Tensor
from torch.nn import Module

from botorch_transfer.gp.objective import TargetObjective
from botorch_transfer.gp.optimize import single_threaded_scipy

# LinAlgError is what PyTorch raises where linear_operator does not look.
_BREAKDOWNS = (NotPSDError, NanError, torch.linalg.LinAlgError)

_FURTHER_STARTS = 4
"""How many more starts are tried, one after another, while the numerics of all break down."""

_MAX_ITERATIONS = 15000
"""As in BoTorch's optimizer."""


def fit_from_starts(
    mll: ExactMarginalLogLikelihood,
    num_restarts: int,
    seed: int,
    further: Mapping[str, Tensor] | None = None,
    **optimizer_kwargs: Any,
) -> None:
    """Maximizes a marginal log likelihood, hyperpriors included, and keeps the best optimum.

    Every evaluation of the objective serves all starts. It has a closed form for most models, see
    :class:`~.objective.TargetObjective`. Any other model, and any whose optimizer is asked for
    more than a number of iterations or a timeout, is repeated along a new batch dimension, once for
    each start, and BoTorch's optimizer is used. In a model that is a batch already, each member
    keeps its own best. If the numerics of one start break down, each start is tried by itself; if
    all break down, a few more starts are tried.

    Args:
        mll: The marginal log likelihood of a single-outcome model with target data, in training
            mode.
        num_restarts: The number of starts drawn from the hyperpriors, besides the present values.
        seed: The seed of these draws.
        further: A further start: values of the parameters by name.
        **optimizer_kwargs: See :func:`botorch.optim.fit.fit_gpytorch_mll_scipy`. The bounds apply
            to all starts at once: they have one more dimension. With several starts, a callback
            gets the vector of one start's parameters at a time.

    Raises:
        ModelFittingError: If no start leads to an optimum.
        ValueError: If members of a batch share the parameters of a kernel or a noise.
    """
    _check_batch_shapes(mll.model)
    parameters = get_parameters(mll, requires_grad=True)
    starts = _draw_starts(mll, parameters, num_restarts, seed, further)
    try:
        optima, value = _maximize_in_closed_form(mll, starts, **optimizer_kwargs) or _maximize(
            mll, starts, optimizer_kwargs
        )
    except _BREAKDOWNS:
        enough = len(next(iter(starts.values())))
        starts = _draw_starts(mll, parameters, num_restarts + _FURTHER_STARTS, seed, further)
        optima, value = _maximize_one_by_one(mll, starts, enough, optimizer_kwargs)
    if bool(value.isnan().all(dim=0).any()):
        raise ModelFittingError(
            f"The objective of {type(mll.model).__name__} is NaN at the end of every start: check "
            "its hyperpriors, and the inputs for extreme scales."
        )
    best = value.nan_to_num(nan=-torch.inf).argmax(dim=0, keepdim=True)
    for name, parameter in parameters.items():
        index = best.reshape(*best.shape, *[1] * (parameter.dim() + 1 - best.dim()))
        chosen = optima[name].gather(0, index.expand(1, *parameter.shape))
        parameter.data.copy_(chosen.squeeze(0))


def _check_batch_shapes(model: SingleTaskGP) -> None:
    """Refuses parameters that members of a batch share: each member keeps its own optimum."""
    expected = model._aug_batch_shape
    for module in model.modules():
        found = _own_batch_shape(module)
        is_fitted = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        if is_fitted and found not in (None, expected):
            raise ValueError(
                f"The {type(module).__name__} has the batch shape {tuple(found)}, but the model "
                f"{tuple(expected)}: build it with batch_shape=torch.Size({list(expected)})."
            )


def _own_batch_shape(module: Module) -> torch.Size | None:
    """The batch shape of a module's own parameters, if one can tell."""
    if isinstance(module, Kernel):
        return module._batch_shape
    return module.raw_noise.shape[:-1] if isinstance(module, HomoskedasticNoise) else None


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
    with single_threaded_scipy():
        found = objective.maximize(starts, max_iter, _stopping_in_time(timeout_sec))
    return None if bool(found[1].isneginf().all(dim=0).any()) else found


def _maximize(
    mll: ExactMarginalLogLikelihood, starts: dict[str, Tensor], optimizer_kwargs: dict[str, Any]
) -> tuple[dict[str, Tensor], Tensor]:
    """Optimizes all starts at once; returns the optima and their values, starts first."""
    repeated = repeat(mll, starts)
    if repeated.model._aug_batch_shape.numel() > 1:
        # BoTorch ignores a timeout of batches.
        timeout, callback = (optimizer_kwargs.get(name) for name in ("timeout_sec", "callback"))
        callback = _stopping_in_time(timeout, callback)
        optimizer_kwargs = {**optimizer_kwargs, "timeout_sec": None, "callback": callback}
    with single_threaded_scipy():
        fit_gpytorch_mll_scipy(repeated, **optimizer_kwargs)
    with torch.no_grad():
        output = repeated.model(*repeated.model.train_inputs)
        value = repeated(output, repeated.model.train_targets)
    optima = get_parameters(repeated, requires_grad=True)
    return {name: optimum.detach() for name, optimum in optima.items()}, value


def _stopping_in_time(
    timeout_sec: float | None, callback: Callable[[ndarray], Any] | None = None
) -> Callable[[ndarray], Any] | None:
    """Has a callback stop every start in time."""
    if timeout_sec is None:
        return callback
    deadline = monotonic() + timeout_sec

    def stop_in_time(x: ndarray) -> None:
        if callback is not None:
            callback(x)
        if monotonic() > deadline:
            raise StopIteration

    return stop_in_time


def _maximize_one_by_one(
    mll: ExactMarginalLogLikelihood,
    starts: dict[str, Tensor],
    enough: int,
    optimizer_kwargs: dict[str, Any],
) -> tuple[dict[str, Tensor], Tensor]:
    """Optimizes each start by itself: the first ones, then others until one succeeds."""
    results: list[tuple[dict[str, Tensor], Tensor]] = []
    breakdown = None
    for start in range(len(next(iter(starts.values())))):
        if start >= enough and results:
            break
        one = {name: values[start : start + 1] for name, values in starts.items()}
        try:
            results.append(_maximize(mll, one, optimizer_kwargs))
        except _BREAKDOWNS as error:
            breakdown = error
    if not results:
        raise ModelFittingError(
            f"No start leads to an optimum of {type(mll.model).__name__}: its covariance matrix is "
            "not positive definite. Check the inputs for extreme scales, or use another kernel."
        ) from breakdown
    optima = {name: torch.cat([found[name] for found, _ in results]) for name in starts}
    return optima, torch.cat([value for _, value in results])


def _draw_starts(
    mll: ExactMarginalLogLikelihood,
    parameters: dict[str, Tensor],
    num_restarts: int,
    seed: int,
    further: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    """Stacks the present values, further ones and draws along a new first dimension.

    A copy on the CPU draws from the hyperpriors. The draws are thus the same on every device. Also,
    some of GPyTorch's priors, such as ``LogNormalPrior``, draw on the CPU wherever the model is.
    """
    drawn = {name: [parameter.detach().clone()] for name, parameter in parameters.items()}
    for name, value in (further or {}).items():
        drawn[name].append(value.to(parameters[name]))
    on_cpu = deepcopy(mll).cpu()
    copies = get_parameters(on_cpu, requires_grad=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for _ in range(num_restarts):
            sample_all_priors(on_cpu.model)
            for name, parameter in parameters.items():
                drawn[name].append(copies[name].detach().to(parameter, copy=True))
    return {name: torch.stack(values) for name, values in drawn.items()}


def repeat(
    mll: ExactMarginalLogLikelihood, starts: dict[str, Tensor]
) -> ExactMarginalLogLikelihood:
    """Copies a marginal log likelihood along a new first batch dimension, one copy a start.

    Args:
        mll: The marginal log likelihood.
        starts: ``S x parameter_shape`` tensors: the starts of the parameters by name.

    Returns:
        The copy, with the starts as its parameters.
    """
    repeated = deepcopy(mll)
    model, first = repeated.model, next(iter(starts.values())).shape[:1]
    own = (None, model._aug_batch_shape)
    shared = {
        parameter
        for module in model.modules()
        if _own_batch_shape(module) not in own
        for parameter in module.parameters(recurse=False)
    }
    for name, parameter in repeated.named_parameters():
        if name in starts:
            parameter.data = starts[name]
        elif parameter not in shared:
            parameter.data = parameter.data.expand(first + parameter.shape)
    for module in model.modules():
        # Kernels that only combine others have no batch of their own in a batched model.
        if isinstance(module, Kernel) and module._batch_shape == model._aug_batch_shape:
            module._batch_shape = first + module._batch_shape
    (X,), Y = model.train_inputs, model.train_targets
    model.set_train_data(X.expand(first + X.shape), Y.expand(first + Y.shape), strict=False)
    model._input_batch_shape = first + model._input_batch_shape
    model._aug_batch_shape = first + model._aug_batch_shape
    return repeated
