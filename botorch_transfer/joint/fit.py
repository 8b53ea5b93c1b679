"""The log posterior of a joint model's hyperparameters in closed form, and its maximum.

Read it for how joint models are fitted. ``kernels.joint_likelihood`` gives the likelihood of all
tasks and its derivatives in coregionalization matrices, lengthscales, variances and noise. From
these few numbers to the parameters, automatic differentiation takes the last step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Self, cast

import torch
from botorch.optim.utils import get_parameters, get_parameters_and_bounds
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.gp.objective import CONVERGED, is_gaussian_or_known
from botorch_transfer.gp.optimize import minimize_batched
from botorch_transfer.gp.restarts import repeat
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.joint.likelihood import JointGradient, TaskLayout, joint_nll_and_gradient

logger = logging.getLogger(__name__)

LONG = 10.0
"""The seconds from which a fit says beforehand how long it will take."""

TYPICAL_EVALUATIONS = 100
"""The number of evaluations of a start that a fit typically takes."""


class JointObjective:
    """The negative log posterior of a joint model's hyperparameters per point, with its gradient.

    It is the model's marginal log likelihood with the opposite sign, in the same parameters,
    evaluated in double precision.

    Args:
        mll: The marginal log likelihood of a joint model, in training mode.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        self._mll = mll
        model: Any = mll.model
        points, kernel = model.conditional.points, model.conditional.kernel
        X, Y = model.transform_inputs(model.train_inputs[0]).double(), model.train_targets.double()
        n, self._batch_shape = Y.shape[-1], Y.shape[:-1]
        num_members = self._batch_shape.numel()
        # Each member's own data behind those of the sources.
        own = X.reshape(num_members, n, X.shape[-1]), Y.reshape(num_members, n)
        self._X = [torch.cat([points.X.double(), each]) for each in own[0]]
        self._Y = [torch.cat([points.Y.double(), each]) for each in own[1]]
        self._layout = TaskLayout(
            (*points.sizes, n), kernel.support, kernel.sources_are_independent, X.device
        )
        self._num_points = n or sum(points.sizes)

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Reads a model.

        Args:
            mll: The marginal log likelihood of a joint model, in training mode.

        Returns:
            The objective. ``None`` if it has no closed form: it has one if all data kernels are RBF
            or Matérn, and the target's noise is Gaussian or known.
        """
        model: Any = mll.model
        kernels = model.conditional.kernel.data_kernels
        parameters = get_parameters(mll, requires_grad=True).values()
        batch_shape = model.train_targets.shape[:-1]
        if (
            any(Stationary.of(kernel) is None for kernel in kernels)
            or not is_gaussian_or_known(model.likelihood)
            or any(parameter.shape[: len(batch_shape)] != batch_shape for parameter in parameters)
        ):
            return None
        return cls(mll)

    def maximize(
        self,
        starts: dict[str, Tensor],
        max_iter: int,
        callback: Callable[[Any], None] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Maximizes the log posterior from all starts.

        Args:
            starts: ``S x parameter_shape`` tensors: the starts of the parameters by name.
            max_iter: The most iterations of each start.
            callback: See :func:`minimize_batched`.

        Returns:
            The optima like the starts, and the ``S x batch_shape`` log posteriors per point; minus
            infinity where the covariance matrix of a start is not positive definite.
        """
        repeated = repeat(self._mll, starts)
        parameters, bounds = get_parameters_and_bounds(repeated, requires_grad=True)
        shape = next(iter(starts.values())).shape[:1] + self._batch_shape
        num_rows = shape.numel()

        def in_rows(values: Mapping[str, Tensor]) -> Tensor:
            flat = [values[name].detach().reshape(num_rows, -1).double() for name in parameters]
            return torch.cat(flat, dim=-1)

        def limit(side: int) -> Tensor:
            found = {name: torch.as_tensor(pair[side]) for name, pair in bounds.items()}
            infinite = torch.tensor((-torch.inf, torch.inf)[side])
            wide = {n: found.get(n, infinite).to(p).expand(p.shape) for n, p in parameters.items()}
            return in_rows(wide)[0]

        sizes = [parameter.numel() // num_rows for parameter in parameters.values()]

        def evaluate(theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            columns = theta.split(sizes, dim=-1)
            for parameter, values in zip(parameters.values(), columns, strict=True):
                parameter.data.view(num_rows, -1)[rows] = values.to(parameter)
            return self._evaluate(repeated, list(parameters.values()), shape, rows)

        one = in_rows(parameters)[:1]
        self._announce(num_rows, lambda: evaluate(one, torch.zeros(1, dtype=torch.long)))
        theta, value = minimize_batched(
            evaluate,
            in_rows(parameters),
            torch.stack([limit(0), limit(1)]),
            max_iter,
            gradient_tolerance=CONVERGED / self._num_points,
            callback=callback,
        )
        columns = zip(parameters.items(), theta.split(sizes, dim=-1), strict=True)
        optima = {name: found.reshape(p.shape).to(p) for (name, p), found in columns}
        return optima, -value.reshape(shape).to(self._Y[0])

    def _announce(self, num_rows: int, evaluate: Callable[[], Any]) -> None:
        """Says how long a long fit will take, by the time of one evaluation."""
        start = perf_counter()
        evaluate()
        seconds = TYPICAL_EVALUATIONS * num_rows * (perf_counter() - start)
        if seconds > LONG:
            logger.info(
                "The fit of %s to %d points will take about %.2g seconds: max_points= uses fewer "
                "points of the source tasks, num_restarts=0 one start only.",
                type(self._mll.model).__name__,
                len(self._Y[0]),
                seconds,
            )

    @torch.enable_grad()
    def _evaluate(
        self, mll: Any, parameters: list[Tensor], shape: torch.Size, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Evaluates some rows of the repeated model: values and gradients per point."""
        model = mll.model
        kernel = model.conditional.kernel
        stationary = [cast(Stationary, Stationary.of(each)) for each in kernel.data_kernels]

        def of_rows(values: Tensor, event_dims: int) -> Tensor:
            event = values.shape[values.dim() - event_dims :]
            return values.double().expand(*shape, *event).reshape(-1, *event)[rows]

        dim, noise = (
            self._X[0].shape[-1],
            model.conditional.noise.variances(model.conditional.points),
        )
        lengthscales = [each.lengthscale.squeeze(-2).expand(*shape, dim) for each in stationary]
        scales = [each.scale.expand(shape) for each in stationary]
        noise = noise.expand(*shape, noise.shape[-1])
        if model.num_target_points:
            noise = torch.cat([noise, model._noise_variance().expand(*shape, -1)], dim=-1)
        made = (
            of_rows(kernel.task_covariances(), event_dims=3),
            of_rows(torch.stack(lengthscales, dim=-2), event_dims=2),
            of_rows(torch.stack(scales, dim=-1), event_dims=1),
            of_rows(noise, event_dims=1),
        )
        values: list[Tensor] = []
        slopes: list[JointGradient] = []
        for row, *each in zip(rows.tolist(), *(part.detach() for part in made), strict=True):
            covariances, lengthscale, scale, variances = each
            kernels = [
                Stationary(kind.name, own.unsqueeze(0), variance)
                for kind, own, variance in zip(stationary, lengthscale, scale, strict=True)
            ]
            member = row % len(self._X)
            value, slope = joint_nll_and_gradient(
                self._layout, self._X[member], self._Y[member], variances, covariances, kernels
            )
            values.append(value)
            slopes.append(slope)
        # Linear in what the hyperparameters make: its gradient is that of the likelihood.
        linear = sum(
            (part * torch.stack(derivatives)).sum()
            for part, derivatives in zip(made, zip(*slopes, strict=True), strict=True)
        )
        log_prior = mll._add_other_terms(made[0].new_zeros(shape), []).reshape(-1)[rows]
        slopes_in_parameters = torch.autograd.grad(
            linear - log_prior.sum(), parameters, allow_unused=True, materialize_grads=True
        )
        flat = [each.reshape(shape.numel(), -1)[rows].double() for each in slopes_in_parameters]
        total = torch.stack(values) - log_prior.detach()
        return total / self._num_points, torch.cat(flat, dim=-1) / self._num_points
