"""Fitting a target's few hyperparameters from several starts, all in one batched optimization."""

from __future__ import annotations

from copy import deepcopy

import torch
from botorch.models.gp_regression import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.optim.utils import get_parameters, sample_all_priors
from botorch.utils.context_managers import parameter_rollback_ctx
from gpytorch.kernels import Kernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from threadpoolctl import threadpool_limits
from torch import Tensor


def fit_from_starts(
    mll: ExactMarginalLogLikelihood, num_restarts: int, seed: int, max_iter: int | None = None
) -> None:
    """Maximizes a marginal log likelihood, hyperpriors included, and keeps the best optimum.

    The model is repeated along a new batch dimension, once for each start, so that every
    evaluation of the objective serves all of them. In a model that is a batch already, each member
    keeps its own best.

    Args:
        mll: The marginal log likelihood of a single-outcome model with target data, in training
            mode.
        num_restarts: The number of starts drawn from the hyperpriors, besides the present values.
        seed: The seed of these draws.
        max_iter: The number of iterations after which to stop; the optimizer's own if omitted.
    """
    parameters = get_parameters(mll, requires_grad=True)
    starts = _draw_starts(mll.model, parameters, num_restarts, seed)
    repeated = _repeat(mll, starts, 1 + num_restarts)
    options = None if max_iter is None else {"maxiter": max_iter}
    # SciPy's steps are a few dozen numbers each: more threads would only wait for one another.
    with threadpool_limits(1, user_api="blas"):
        fit_gpytorch_mll_scipy(repeated, options=options)
    with torch.no_grad():
        output = repeated.model(*repeated.model.train_inputs)
        value = repeated(output, repeated.model.train_targets)
    optima = get_parameters(repeated, requires_grad=True)
    best = value.nan_to_num(nan=-torch.inf).argmax(dim=0, keepdim=True)
    for name, parameter in parameters.items():
        index = best.reshape(*best.shape, *[1] * (parameter.dim() + 1 - best.dim()))
        chosen = optima[name].detach().gather(0, index.expand(1, *parameter.shape))
        parameter.data.copy_(chosen.squeeze(0))


def _draw_starts(
    model: SingleTaskGP, parameters: dict[str, Tensor], num_restarts: int, seed: int
) -> dict[str, Tensor]:
    """Stacks the present values and draws from the hyperpriors along a new first dimension."""
    drawn = {name: [parameter.detach().clone()] for name, parameter in parameters.items()}
    devices = {parameter.device for parameter in parameters.values() if parameter.is_cuda}
    # Hyperparameters that are not fitted have hyperpriors, too, and are drawn with the others.
    everything: dict[str, Tensor] = dict(model.named_parameters())
    with torch.random.fork_rng(devices=list(devices)), parameter_rollback_ctx(everything):
        torch.manual_seed(seed)
        for _ in range(num_restarts):
            sample_all_priors(model)
            for name, parameter in parameters.items():
                drawn[name].append(parameter.detach().clone())
    return {name: torch.stack(values) for name, values in drawn.items()}


def _repeat(
    mll: ExactMarginalLogLikelihood, starts: dict[str, Tensor], num_starts: int
) -> ExactMarginalLogLikelihood:
    """Copies a marginal log likelihood along a new first batch dimension, one copy a start."""
    repeated = deepcopy(mll)
    model = repeated.model
    for name, parameter in repeated.named_parameters():
        values = starts.get(name)
        parameter.data = (
            parameter.data.expand(num_starts, *parameter.shape) if values is None else values
        )
    first = torch.Size([num_starts])
    for module in model.modules():
        # Kernels that only combine others have no batch of their own in a batched model.
        if isinstance(module, Kernel) and module._batch_shape == model._aug_batch_shape:
            module._batch_shape = first + module._batch_shape
    (X,), Y = model.train_inputs, model.train_targets
    model.set_train_data(X.expand(first + X.shape), Y.expand(first + Y.shape), strict=False)
    model._input_batch_shape = first + model._input_batch_shape
    model._aug_batch_shape = first + model._aug_batch_shape
    return repeated
