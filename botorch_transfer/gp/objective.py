r"""The log posterior of a target's hyperparameters in closed form, and its maximum.

Read it for how most models are fitted, and which ones. What the sources say of the target's points,
their means ``μ_m`` and covariances ``Σ_m``, is computed once. The likelihood is then the one of
``gp.likelihood`` with the mean ``Σ_m w_m μ_m`` and the further covariance ``Σ_m w_m² Σ_m``. With
``α`` and ``G`` of that module,

.. code-block:: text

    ∂NLL/∂w_m = -αᵀμ_m + 2 w_m tr(G Σ_m)

On matrices of a few points, GPyTorch's lazy kernels and automatic differentiation take ten times as
long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module, Parameter

from botorch_transfer.gp.combine import WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.hyperpriors import LogPrior, UnseenNoiseLikelihood
from botorch_transfer.gp.likelihood import (
    BLOCK_ELEMENTS,
    StationaryGradient,
    stationary_nll_and_gradient,
)
from botorch_transfer.gp.optimize import minimize_batched
from botorch_transfer.gp.stationary import Stationary

CONVERGED = 0.05
"""Where no parameter's derivative is larger, in nats, a start has converged. Where the objective is
curved, next to nothing is left to gain. In a flat direction the derivative does not say how far
the parameter would still move, nor what is gained on the way."""


@dataclass(frozen=True)
class _Hyperparameter:
    """One kind of hyperparameter, for instance the lengthscales.

    Args:
        name: The parameter's name in the marginal log likelihood.
        parameter: What is optimized: the hyperparameter itself, or its logarithm.
        event_shape: Its shape in each member of a batch of models.
        is_log: Whether it is the logarithm.
        bounds: A ``2 x k`` tensor: those of the parameter.
        prior: The hyperprior.
    """

    name: str
    parameter: Parameter
    event_shape: torch.Size
    is_log: bool
    bounds: Tensor
    prior: Prior | None

    @property
    def size(self) -> int:
        """The number ``k`` of values in each member."""
        return self.event_shape.numel()

    def rows(self, values: Tensor, batch_shape: torch.Size) -> Tensor:
        """Turns ``[S x] parameter_shape`` values into rows; members may share a value."""
        shape = batch_shape + self.event_shape
        missing = len(shape) - self.parameter.dim()
        values = values.reshape(-1, *[1] * missing, *self.parameter.shape)
        return values.expand(-1, *shape).reshape(-1, self.size).double()


class TargetObjective:
    r"""The negative log posterior of a target's hyperparameters per point, with its gradient.

    It is GPyTorch's marginal log likelihood with the opposite sign, in the same parameters,
    evaluated in double precision. Row ``i`` of the parameters is of member ``i % B`` of a batch of
    ``B`` models.

    Args:
        model: The model, in training mode.
        kernel: The residual kernel's name.
        sources: The sources' covariance.
        parts: The hyperparameters by kind.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Any,
        kernel: str,
        sources: WeightedSumKernel | None,
        parts: Mapping[str, _Hyperparameter],
    ) -> None:
        X, Y = model.transform_inputs(model.train_inputs[0]), model.train_targets
        n = Y.shape[-1]
        self._kernel, self._parts, self._batch_shape = kernel, parts, Y.shape[:-1]
        self._X, self._Y = X.double().reshape(-1, n, X.shape[-1]), Y.double().reshape(-1, n)
        self._known_noise = self._means = self._covariances = self._covariance = None
        if "noise" not in parts:
            noise = model.likelihood.noise_covar.noise.double()
            self._known_noise = noise.expand(Y.shape).reshape(-1, n)
        # The first dimension of both is one if all members have the same inputs and sources.
        if isinstance(model.mean_module, WeightedSumMean):
            means = model.mean_module.source_means(X).double()
            self._means = self._of_members(model.mean_module, means)
        if sources is not None:
            covariances = sources.source_covariances(X).double().flatten(start_dim=-2)
            self._covariances = self._of_members(sources, covariances)
        if "weights" not in parts:
            if self._means is not None:
                self._Y = self._Y - self._means.sum(dim=-2)
            if self._covariances is not None:
                self._covariance = self._covariances.sum(dim=-2).reshape(-1, n, n)
        self.log_prior = LogPrior([(part.prior, part.size) for part in parts.values()])
        present = [part.rows(part.parameter.detach(), self._batch_shape) for part in parts.values()]
        self._present = torch.cat(present, dim=-1)
        self._sizes = [part.size for part in parts.values()]
        columns = [part for part in parts.values() for _ in range(part.size)]
        is_fitted = torch.tensor([part.parameter.requires_grad for part in columns])
        self._fitted = is_fitted.nonzero().squeeze(-1).to(X.device)
        self._is_log = torch.tensor([part.is_log for part in columns]).to(X.device)

    def _of_members(self, module: WeightedSumMean | WeightedSumKernel, values: Tensor) -> Tensor:
        """Selects the ``B x M x k`` values of each member's own sources."""
        values = values.reshape(-1, *values.shape[-2:])
        columns = getattr(module.task_weights, "columns", None)
        if columns is None:
            return values
        columns = columns.reshape(len(self._Y), -1, 1)
        values = values.expand(len(self._Y), *values.shape[1:])
        return values.gather(1, columns.expand(*columns.shape[:2], values.shape[-1]))

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Reads a model.

        Args:
            mll: The marginal log likelihood of a model with target data, in training mode.

        Returns:
            The objective. ``None`` if it has no closed form: it has one for exact GPs with a
            residual whose kernel is RBF or Matérn, with noise that is Gaussian or known, with
            hyperpriors that are Gamma, log-normal or normal, and with parameters that are
            optimized as they are or as logarithms (``LogTransformedInterval``), not through
            GPyTorch's default softplus.
        """
        model = cast(Any, mll.model)
        if (
            type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not model.likelihood
            or not getattr(model, "is_fitted_as_exact_gp", False)
        ):
            return None
        residual, sources = _residual_and_sources(model.covar_module)
        stationary, homes = Stationary.of(residual), _homes(model, residual, sources)
        if stationary is None or homes is None:
            return None
        parts = {kind: _read(mll, kind, module) for kind, module in homes.items()}
        found = {kind: part for kind, part in parts.items() if part is not None}
        ours = {part.parameter for part in found.values()}
        priors = [prior for _, _, prior, _, _ in model.named_priors()]
        if (
            len(found) < len(homes)
            or any(p.requires_grad and p not in ours for p in mll.parameters())
            or len(priors) > sum(part.prior is not None for part in found.values())
        ):
            return None
        objective = cls(model, stationary.name, sources, found)
        return objective if objective.log_prior.is_closed_form else None

    # -------------------------------------------------------------------------------- evaluation

    @torch.no_grad()
    def __call__(self, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the objective.

        Args:
            theta: A ``P x k`` tensor of the parameters that are fitted.
            rows: A ``P`` tensor: which of all rows they are.

        Returns:
            The ``P`` values and their ``P x k`` gradient; NaN where a covariance matrix is not
            positive definite, even with some jitter.
        """
        member = rows % len(self._Y)
        parameters = self._present[member]
        parameters[:, self._fitted] = theta
        values = torch.where(self._is_log, parameters.exp(), parameters)
        part = dict(zip(self._parts, values.split(self._sizes, dim=-1), strict=True))
        residual, covariance = self._Y[member], None
        if "constant" in part:
            residual = residual - part["constant"]
        if "weights" in part and self._means is not None:
            residual = residual - _by_member(part["weights"], rows, self._means)
        if "weights" in part and self._covariances is not None:
            covariance = _by_member(part["weights"].square(), rows, self._covariances)
            covariance = covariance.unflatten(-1, (self._Y.shape[-1], -1))
        elif self._covariance is not None:
            covariance = self._covariance[member % len(self._covariance)]
        n, noise = residual.shape[-1], self._known_noise
        noise = part["noise"].expand_as(residual) if noise is None else noise[member]
        scale = part.get("outputscale", values.new_ones(len(values), 1))
        value, slopes = stationary_nll_and_gradient(
            residual,
            self._X[member],
            Stationary(self._kernel, part["lengthscale"].unsqueeze(-2), scale.squeeze(-1)),
            noise,
            covariance=covariance,
            max_elements=BLOCK_ELEMENTS if theta.device.type == "cpu" else n * residual.numel(),
        )
        lengthscale = slopes.log_lengthscale.sum_to_size(part["lengthscale"].shape)
        gradient = {
            "lengthscale": lengthscale / part["lengthscale"],
            "outputscale": slopes.log_scale.unsqueeze(-1) / scale,
            "noise": slopes.noise.sum(dim=-1, keepdim=True),
            "constant": slopes.mean.sum(dim=-1, keepdim=True),
        }
        if "weights" in part:
            gradient["weights"] = self._in_weights(part["weights"], slopes, rows)
        log_prior, slope = self.log_prior(values)
        in_values = torch.cat([gradient[kind] for kind in part], dim=-1) - slope
        in_parameters = torch.where(self._is_log, in_values * values, in_values)
        return (value - log_prior.sum(dim=-1)) / n, in_parameters[:, self._fitted] / n

    def _in_weights(self, weights: Tensor, slopes: StationaryGradient, rows: Tensor) -> Tensor:
        """The derivatives of the negative log likelihood in the sources' weights."""
        derivative = torch.zeros_like(weights)
        if self._means is not None:
            derivative = _by_member(slopes.mean, rows, self._means.mT)
        if self._covariances is not None:
            traces = _by_member(slopes.covariance.flatten(-2), rows, self._covariances.mT)
            derivative = derivative + 2 * weights * traces
        return derivative

    # ------------------------------------------------------------------------------ optimization

    @property
    def fitted(self) -> list[_Hyperparameter]:
        """The hyperparameters that are fitted, in the order of their columns."""
        return [part for part in self._parts.values() if part.parameter.requires_grad]

    def rows(self, starts: Mapping[str, Tensor]) -> Tensor:
        """Turns ``S x parameter_shape`` tensors by name into the ``S * B`` rows of all starts."""
        columns = [part.rows(starts[part.name], self._batch_shape) for part in self.fitted]
        return torch.cat(columns, dim=-1)

    def maximize(
        self,
        starts: Mapping[str, Tensor],
        max_iter: int,
        callback: Callable[[Any], None] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Maximizes the log posterior from all starts at once.

        Args:
            starts: ``S x parameter_shape`` tensors: the starts of the parameters by name.
            max_iter: The most iterations of each start.
            callback: See :func:`minimize_batched`.

        Returns:
            The optima like the starts, and the ``S x batch_shape`` log posteriors per point; minus
            infinity where the covariance matrix of a start is not positive definite.
        """
        theta, value = minimize_batched(
            self,
            self.rows(starts),
            torch.cat([part.bounds for part in self.fitted], dim=-1),
            max_iter,
            gradient_tolerance=CONVERGED / self._Y.shape[-1],
            callback=callback,
        )
        columns = theta.split([part.size for part in self.fitted], dim=-1)
        optima = {
            part.name: column.reshape(-1, *part.parameter.shape).to(part.parameter)
            for part, column in zip(self.fitted, columns, strict=True)
        }
        return optima, -value.reshape(-1, *self._batch_shape).to(self._Y)


def _by_member(values: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiplies ``P x k`` rows of values by their members' ``B x k x l`` matrices."""
    num_members = len(matrices)
    if num_members == 1:
        return values @ matrices[0]
    # Rows that converged are missing: as zeros, they let all starts of a member be one product.
    num_starts = int(rows.max()) // num_members + 1
    full = values.new_zeros(num_starts * num_members, values.shape[-1])
    full[rows] = values
    products = full.reshape(num_starts, num_members, -1).transpose(0, 1) @ matrices
    return products.transpose(0, 1).flatten(0, 1)[rows]


def _residual_and_sources(kernel: Kernel) -> tuple[Kernel, WeightedSumKernel | None]:
    """Takes a target's kernel apart."""
    if type(kernel) is AdditiveKernel and len(kernel.kernels) == 2 and kernel.active_dims is None:
        residual, sources = kernel.kernels
        if type(sources) is WeightedSumKernel:
            return residual, sources
    return kernel, None


_PRIOR_NAMES = {
    "lengthscale": "lengthscale_prior",
    "outputscale": "outputscale_prior",
    "noise": "noise_prior",
    "constant": "mean_prior",
    "weights": "weights_prior",
}
"""What GPyTorch and this package call the hyperpriors."""

_EVENT_DIMS = {"lengthscale": 2, "outputscale": 0, "noise": 1, "constant": 0, "weights": 1}


def is_gaussian_or_known(likelihood: Any) -> bool:
    """Whether noise is Gaussian with one variance, or known, and nothing else.

    Args:
        likelihood: The likelihood.

    Returns:
        Whether it is.
    """
    if type(likelihood) in (FixedNoiseGaussianLikelihood, UnseenNoiseLikelihood):
        return likelihood.second_noise_covar is None
    return type(likelihood) is GaussianLikelihood


def _homes(
    model: Any, residual: Any, sources: WeightedSumKernel | None
) -> dict[str, Module] | None:
    """Finds the modules of all hyperparameters by kind; ``None`` if there may be others."""
    homes: dict[str, Module] = {"lengthscale": residual}
    if isinstance(residual, ScaleKernel):
        homes = {"lengthscale": residual.base_kernel, "outputscale": residual}
    likelihood, mean = model.likelihood, model.mean_module
    if not is_gaussian_or_known(likelihood):
        return None
    if type(likelihood) is GaussianLikelihood:
        homes["noise"] = likelihood.noise_covar
    weights = [] if sources is None else [sources.task_weights]
    if type(mean) is ConstantMean:
        homes["constant"] = mean
    elif type(mean) is WeightedSumMean:
        weights.append(mean.task_weights)
    else:
        return None
    if any(each is not weights[0] for each in weights):
        return None
    if weights and weights[0] is not None:
        homes["weights"] = weights[0]
    return homes


def _read(mll: ExactMarginalLogLikelihood, kind: str, module: Any) -> _Hyperparameter | None:
    """Reads one kind of hyperparameter; ``None`` if it is none of those that are served."""
    parameter: Parameter | None = getattr(module, f"raw_{kind}", None)
    constraint = getattr(module, f"raw_{kind}_constraint", None)
    is_log = type(constraint) is LogTransformedInterval
    if parameter is None or (constraint is not None and constraint.enforced and not is_log):
        return None
    event_shape = parameter.shape[parameter.dim() - _EVENT_DIMS[kind] :]
    own_shape = mll.model.train_targets.shape[:-1] + event_shape
    if parameter.requires_grad and parameter.shape != own_shape:
        return None
    prior, size = None, event_shape.numel()
    for name, home, each, closure, _ in mll.model.named_priors():
        if home is module and name.split(".")[-1] == _PRIOR_NAMES[kind]:
            prior = each
            # A hyperprior of this name may be of something else, for instance of the logarithm.
            is_of_value = torch.equal(closure(module), getattr(module, kind))
            if not is_of_value or prior.batch_shape.numel() not in (1, size):
                return None
    bounds = torch.tensor([[-torch.inf], [torch.inf]], dtype=torch.double).expand(2, size)
    if constraint is not None:
        limits = [constraint.inverse_transform(limit).double().flatten() for limit in constraint]
        if any(len(limit) not in (1, size) for limit in limits):
            return None
        bounds = torch.stack([limit.cpu().expand(size) for limit in limits])
    name = next(name for name, each in mll.named_parameters() if each is parameter)
    return _Hyperparameter(name, parameter, event_shape, is_log, bounds, prior)
