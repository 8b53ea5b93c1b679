r"""The log posterior that every fit maximizes: closed form inside, autograd for the last step.

Read it for how hyperparameters are fitted. A likelihood gives its value and its derivatives in the
hyperparameters in closed form (:mod:`~.gp.likelihood`). Automatic differentiation takes the last
step only, from these few numbers through constraints and hyperpriors to the parameters. On matrices
of a few points, GPyTorch's lazy kernels and a graph of the whole likelihood take ten times as long.

For a target, the means ``μ_m`` and covariances ``Σ_m`` of its points under the sources are computed
once. The likelihood is the one of :mod:`~.gp.likelihood` with the mean ``Σ_m w_m μ_m`` and the
further covariance ``Σ_m w_m² Σ_m``. With ``α`` and ``G`` of that module,

.. code-block:: text

    ∂NLL/∂w_m = -αᵀμ_m + 2 w_m tr(G Σ_m)

All fits share one optimizer, BoTorch's batched L-BFGS-B (:func:`minimize_batched`). Small fits need
two settings: SciPy's BLAS on one thread, and an allocator that keeps freed memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module

from botorch_transfer.gp.combine import SourceWeights, WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.hyperpriors import LogPrior, UnseenNoiseLikelihood
from botorch_transfer.gp.likelihood import BLOCK_ELEMENTS, stationary_nll_and_gradient
from botorch_transfer.gp.noise import AddedNoiseLikelihood, added_variance
from botorch_transfer.gp.stationary import Stationary

CONVERGED = 0.05
"""A start has converged when every derivative is below this, in nats. In a flat direction the
parameter may still move, at a negligible gain."""

MAX_DIFFERENCES = 2**18
"""How many numbers all differences between a target's inputs may take, to be kept."""

_UNDEFINED_IN_BATCH = 1e100
"""Stands for a value that is not a number in :func:`minimize_batched`; outcomes that were not
standardized have large values, which are no reason to stop."""

_in_force = Lock()

Hyperparameters = Mapping[str, Tensor]
"""Hyperparameters by name, or the derivatives in them; ``P`` rows each."""


# ------------------------------------------------------------------------------------ the optimizer


@contextmanager
def single_threaded_scipy() -> Iterator[None]:
    """Limits SciPy's BLAS to one thread, for the whole process.

    A step of L-BFGS-B works on a dozen numbers, where more threads only wait for each other. If
    fits overlap, only the first one sets and resets the limit: if each restored what it had found,
    the process could be left with one thread for good.
    """
    if not _in_force.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _in_force.release()


@cache
def _libraries() -> ThreadpoolController:
    """The libraries with threads. They are looked for once, which takes milliseconds."""
    return ThreadpoolController()


def keep_freed_memory() -> None:
    """Makes the allocator keep freed memory for the next evaluation.

    The C library returns large freed blocks to the system, and each new block then costs page
    faults, a third of the time of a fit. It stops doing so once a block of 32 MiB was freed.
    Settings by ``MALLOC_...`` in the environment, as in dask's workers, stay in force.

    Example:
        >>> keep_freed_memory()
    """
    torch.empty(2**22 - 2**10, dtype=torch.double)


@single_threaded_scipy()
def minimize_batched(
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    starts: Tensor,
    bounds: Tensor,
    max_iter: int,
    gradient_tolerance: float = 1e-5,
    callback: Callable[[npt.NDArray[np.float64]], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Minimizes many functions of a few parameters at once, by BoTorch's batched L-BFGS-B.

    Args:
        evaluate: Gets a ``P x k`` tensor of parameters and a ``P`` tensor that says which start
            each row comes from. Returns the ``P`` values and their ``P x k`` gradient. Where either
            is NaN, the line search turns back. Rows that converged are no longer evaluated.
        starts: An ``S x k`` tensor in double precision, on the device to evaluate on.
        bounds: A ``2 x k`` tensor of lower and upper bounds.
        max_iter: The most iterations of each start.
        gradient_tolerance: A start has converged where no element of the projected gradient is
            larger.
        callback: Called with the parameters after each iteration of each start; ends that start by
            raising ``StopIteration``.

    Returns:
        The parameters where each start ended and the values there, an ``S x k`` and an ``S`` tensor
        on the CPU. The value is infinite where the function is not defined at the start.

    Example:
        >>> def parabolas(x, rows):
        ...     return (x - rows.unsqueeze(-1)).square().sum(-1), 2 * (x - rows.unsqueeze(-1))
        >>> bounds = torch.tensor([[-10.0], [1.5]])
        >>> x, value = minimize_batched(parabolas, torch.zeros(3, 1).double(), bounds, max_iter=9)
        >>> x.flatten(), value
        (tensor([0.0000, 1.0000, 1.5000]...), tensor([0.0000, 0.0000, 0.2500]...))
    """

    def on_arrays(
        x: npt.NDArray[np.float64], batch_indices: list[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        rows = torch.as_tensor(batch_indices, device=starts.device)
        value, gradient = evaluate(torch.from_numpy(x).to(starts), rows)
        packed = torch.column_stack([value, gradient]).cpu().numpy()
        packed[np.isnan(packed).any(axis=-1)] = [_UNDEFINED_IN_BATCH, *[0.0] * x.shape[-1]]
        return packed[:, 0], packed[:, 1:]

    x, found, _ = fmin_l_bfgs_b_batched(
        on_arrays,
        starts.cpu().numpy(),
        bounds=bounds.T.tolist(),
        maxiter=max_iter,
        pgtol=gradient_tolerance,
        callback=callback,
        pass_batch_indices=True,
    )
    value = torch.from_numpy(found)
    return torch.from_numpy(x), value.masked_fill(value >= _UNDEFINED_IN_BATCH, torch.inf)


# --------------------------------------------------------------------------------------- objectives


class FitObjective(ABC):
    """Base class of the negative log posteriors per point, with their gradients.

    A subclass says how hyperparameters follow from parameters, and gives the likelihood and the
    hyperpriors with their derivatives. Each row of parameters is evaluated by itself.
    """

    @abstractmethod
    def hyperparameters(self, theta: Tensor, rows: Tensor) -> tuple[Hyperparameters, Tensor]:
        """Computes hyperparameters, differentiable in the parameters.

        Args:
            theta: A ``P x k`` tensor of parameters.
            rows: A ``P`` tensor: which of all rows they are.

        Returns:
            What the likelihood depends on, by name; and a ``P x j`` tensor of what the hyperpriors
            are of.
        """

    @abstractmethod
    def likelihood(self, values: Hyperparameters, rows: Tensor) -> tuple[Tensor, Hyperparameters]:
        """Evaluates the negative log likelihood and its derivatives, without a graph.

        Args:
            values: The hyperparameters by name.
            rows: A ``P`` tensor: which of all rows they are.

        Returns:
            ``P`` values, and the derivatives, tensors like the hyperparameters.
        """

    @abstractmethod
    def log_prior(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the hyperpriors and their derivatives, without a graph.

        Args:
            values: A ``P x j`` tensor.
            rows: A ``P`` tensor: which of all rows they are.

        Returns:
            ``P`` log densities, and the ``P x j`` derivatives.
        """

    @abstractmethod
    def num_points(self, rows: Tensor) -> Tensor:
        """The number of points of each row, by which its value is divided."""

    def __call__(self, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the objective.

        Args:
            theta: A ``P x k`` tensor of parameters.
            rows: A ``P`` tensor: which of all rows they are.

        Returns:
            The ``P`` values and their ``P x k`` gradient; NaN where a covariance matrix is not
            positive definite, even with some jitter.
        """
        with torch.enable_grad():
            theta = theta.detach().requires_grad_(True)
            values, of_priors = self.hyperparameters(theta, rows)
        with torch.no_grad():
            value, slopes = self.likelihood({n: v.detach() for n, v in values.items()}, rows)
            log_prior, slope = self.log_prior(of_priors.detach(), rows)
        ends = [(values[name], slopes[name]) for name in values]
        ends.append((of_priors, -slope))
        outputs, given = zip(*(end for end in ends if end[0].requires_grad), strict=True)
        (gradient,) = torch.autograd.grad(outputs, theta, given)
        count = self.num_points(rows)
        return (value - log_prior) / count, gradient / count.unsqueeze(-1)


# ------------------------------------------------------------------------------------ of models


class ModelObjective(FitObjective, ABC):
    """Base class of the objectives of models: the marginal log likelihood, opposite sign.

    Parameters are those of the model, in double precision. Row ``i`` is of member ``i % B`` of a
    batch of ``B`` models.

    Args:
        mll: The marginal log likelihood, in training mode.
    """

    @torch.enable_grad()  # which hyperpriors are of fitted parameters, a graph tells
    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        model: Any = mll.model
        X, Y = model.transform_inputs(model.train_inputs[0]).detach(), model.train_targets
        n, self._batch_shape = Y.shape[-1], Y.shape[:-1]
        self._num_members = self._batch_shape.numel()
        self._X = X.double().reshape(self._num_members, n, X.shape[-1])
        self._Y = Y.double().reshape(self._num_members, n)
        self._known_noise: Tensor | None = None
        self._infers_noise = isinstance(model.likelihood, GaussianLikelihood)
        if n > 0 and type(model.likelihood) is not GaussianLikelihood:
            likelihood = model.likelihood
            known: Any = added_variance(likelihood) if self._infers_noise else likelihood.noise
            self._known_noise = known.double().expand(Y.shape).reshape(self._num_members, n)
        self._count = torch.tensor(float(n), device=Y.device)
        self._model = _Evaluated(mll, self._read)
        self._parameters, self._bounds = get_parameters_and_bounds(mll, requires_grad=True)
        shared = shared_parameters(mll)
        self._frozen = {
            name: parameter.detach().reshape(self._num_members, *self._event_shape(parameter))
            for name, parameter in mll.named_parameters()
            if self._batch_shape and not parameter.requires_grad and parameter not in shared
        }
        self._priors, groups = [], []
        constant = self._Y.new_zeros(self._batch_shape)
        for _, module, prior, closure, _ in model.named_priors():
            value = closure(module)
            if value.requires_grad:
                self._priors.append((closure, module))
                groups.append((prior, value.numel() // self._num_members))
            else:
                density = prior.log_prob(value).detach()
                over = density.reshape(*density.shape[: constant.dim()], -1).sum(dim=-1)
                constant = constant + over
        self._log_prior = LogPrior(groups)
        self._constant = constant.reshape(-1)

    def _event_shape(self, parameter: Tensor) -> torch.Size:
        """The shape of a parameter in each member of the batch."""
        return parameter.shape[len(self._batch_shape) :]

    @staticmethod
    def is_served(mll: ExactMarginalLogLikelihood) -> bool:
        """Whether parameters and hyperpriors can be evaluated by rows.

        Args:
            mll: The marginal log likelihood.

        Returns:
            Whether each member has fitted parameters of its own, and all members have the same
            hyperpriors, which are Gamma, log-normal or normal.
        """
        model: Any = mll.model
        batch_shape = model.train_targets.shape[:-1]
        fitted = [parameter for parameter in mll.parameters() if parameter.requires_grad]
        if any(parameter.shape[: len(batch_shape)] != batch_shape for parameter in fitted):
            return False
        priors = [
            (prior, closure(module).numel() // batch_shape.numel())
            for _, module, prior, closure, _ in model.named_priors()
        ]
        return (
            all(prior.batch_shape.numel() in (1, size) for prior, size in priors)
            and LogPrior(priors).is_closed_form
        )

    @abstractmethod
    def _read(self, model: Any, num_rows: int) -> Hyperparameters:
        """Reads the likelihood's hyperparameters from the model, whose parameters have ``P`` rows.

        Args:
            model: The model.
            num_rows: The number ``P`` of rows.

        Returns:
            The hyperparameters by name, with ``P`` rows each; see :func:`in_rows`.
        """

    def hyperparameters(self, theta: Tensor, rows: Tensor) -> tuple[Hyperparameters, Tensor]:
        """Evaluates the model with rows of parameters in place of its own."""
        member = rows % self._num_members
        given = {f"mll.{name}": values[member] for name, values in self._frozen.items()}
        for name, values in self._split(theta).items():
            event_shape = self._event_shape(self._parameters[name])
            given[f"mll.{name}"] = values.reshape(len(rows), *event_shape)
        return functional_call(self._model, given, (self._priors, len(rows)), tie_weights=False)

    @cached_property
    def _elementwise(self) -> Elementwise | None:
        """How hyperparameters follow from parameters, if it is simple; not of batches."""
        if self._num_members > 1:
            return None
        theta = self.rows({name: p.unsqueeze(0) for name, p in self._parameters.items()})
        return Elementwise.of(
            lambda theta: self.hyperparameters(theta, torch.arange(len(theta))), theta
        )

    def __call__(self, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the objective; see the base class."""
        known = self._elementwise
        if known is None:
            return super().__call__(theta, rows)
        with torch.no_grad():
            values, of_priors, derivatives = known(theta)
            value, slopes = self.likelihood(values, rows)
            log_prior, slope = self.log_prior(of_priors, rows)
            ends = [*(slopes[name].reshape(len(theta), -1) for name in values), -slope]
            gradient = (torch.cat(ends, dim=-1) * derivatives) @ known.places
        return (value - log_prior) / self._count, gradient / self._count

    def log_prior(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the model's hyperpriors, those of frozen parameters included."""
        density, slope = self._log_prior(values)
        return density.sum(dim=-1) + self._constant[rows % self._num_members], slope

    def num_points(self, rows: Tensor) -> Tensor:
        """The number of points of the target."""
        return self._count.expand(len(rows))

    def _split(self, theta: Tensor) -> dict[str, Tensor]:
        """Splits rows into those of each parameter."""
        sizes = [p.numel() // self._num_members for p in self._parameters.values()]
        return dict(zip(self._parameters, theta.split(sizes, dim=-1), strict=True))

    def rows(self, values: Mapping[str, Tensor]) -> Tensor:
        """Turns ``S x parameter_shape`` tensors by name into the ``S * B`` rows of all starts."""
        num_rows = len(next(iter(values.values()))) * self._num_members
        columns = [values[name].detach().reshape(num_rows, -1) for name in self._parameters]
        return torch.cat(columns, dim=-1).double()

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
        bounds = []
        for side, none in enumerate((-torch.inf, torch.inf)):
            limits = {
                name: torch.as_tensor(self._bounds.get(name, (none, none))[side]).to(parameter)
                for name, parameter in self._parameters.items()
            }
            full = {n: limit.expand_as(self._parameters[n])[None] for n, limit in limits.items()}
            bounds.append(self.rows(full)[0])
        theta, value = minimize_batched(
            self,
            self.rows(starts),
            torch.stack(bounds),
            max_iter,
            gradient_tolerance=CONVERGED / float(self._count),
            callback=callback,
        )
        optima = {
            name: values.reshape(starts[name].shape).to(starts[name])
            for name, values in self._split(theta).items()
        }
        return optima, -value.reshape(-1, *self._batch_shape).to(self._Y)


@dataclass(frozen=True)
class Elementwise:
    """Hyperparameters that are a parameter, its exponential, or constant, each of them.

    Evaluating the model, and a graph of it, takes longer than the likelihood of a few points.

    Args:
        constant: An ``E`` tensor, NaN where hyperparameters are not constant.
        is_logarithm: An ``E`` boolean tensor: where the parameter is the logarithm.
        places: An ``E x k`` tensor: one where the hyperparameter is of the parameter, else zero.
        shapes: The hyperparameters' shapes by name; those of the hyperpriors are last.
    """

    constant: Tensor
    is_logarithm: Tensor
    places: Tensor
    shapes: Mapping[str, torch.Size]

    @classmethod
    def of(
        cls, function: Callable[[Tensor], tuple[Hyperparameters, Tensor]], theta: Tensor
    ) -> Self | None:
        """Finds out about a function by two evaluations, near some parameters and near zero.

        Constraints may be linear far from zero, as ``softplus`` is, and nowhere else.

        Args:
            function: Maps ``P x k`` parameters to hyperparameters, see
                :meth:`FitObjective.hyperparameters`.
            theta: A ``1 x k`` tensor of parameters.

        Returns:
            The function; ``None`` if it is another one.
        """
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(2, theta.shape[-1], generator=generator, dtype=torch.double)
        near = torch.cat([theta, torch.zeros_like(theta)]) + 0.01 * noise.to(theta)
        with torch.no_grad():
            values, of_priors = function(near)
        found = torch.cat([*(value.reshape(2, -1) for value in values.values()), of_priors], dim=-1)
        options = torch.stack([near, near.exp()]).unsqueeze(-2)
        differences = (found.unsqueeze(-1) - options).abs().amax(dim=1)
        plain, exponential = differences <= 1e-12 * found.abs().amax(dim=0).unsqueeze(-1)
        constant = torch.where(found[0] == found[1], found[0], torch.nan)
        choices = plain.sum(dim=-1) + exponential.sum(dim=-1) + ~constant.isnan()
        shapes = {name: value.shape[1:] for name, value in values.items()}
        if bool((choices != 1).any()):
            return None
        return cls(constant, exponential.any(dim=-1), (plain | exponential).to(theta), shapes)

    def __call__(self, theta: Tensor) -> tuple[Hyperparameters, Tensor, Tensor]:
        """Evaluates the function.

        Args:
            theta: A ``P x k`` tensor of parameters.

        Returns:
            The hyperparameters and what the hyperpriors are of, as there; and a ``P x E`` tensor of
            the derivatives of all of them, each in its parameter.
        """
        picked = theta @ self.places.mT
        values = torch.where(self.is_logarithm, picked.exp(), picked)
        derivatives = torch.where(self.is_logarithm, values, 1.0)
        values = torch.where(self.constant.isnan(), values, self.constant)
        sizes = [shape.numel() for shape in self.shapes.values()]
        *parts, of_priors = values.split([*sizes, values.shape[-1] - sum(sizes)], dim=-1)
        named = zip(self.shapes.items(), parts, strict=True)
        by_name = {name: part.reshape(len(theta), *shape) for (name, shape), part in named}
        return by_name, of_priors, derivatives


class _Evaluated(Module):
    """What an objective needs of a model, as a module of which parameters can be replaced."""

    def __init__(
        self, mll: ExactMarginalLogLikelihood, read: Callable[[Any, int], Hyperparameters]
    ) -> None:
        super().__init__()
        self.mll, self._read = mll, read

    def forward(
        self, priors: list[tuple[Callable[..., Tensor], Module]], num_rows: int
    ) -> tuple[Hyperparameters, Tensor]:
        of_priors = [closure(module).reshape(num_rows, -1) for closure, module in priors]
        values = self._read(self.mll.model, num_rows)
        empty = next(iter(values.values())).new_empty(num_rows, 0)
        return values, torch.cat([empty, *of_priors], dim=-1)


def in_rows(value: Tensor, num_rows: int, event_dims: int) -> Tensor:
    """Gives every row a hyperparameter, also one that all rows share.

    Args:
        value: A ``P x event_shape`` tensor, or an ``event_shape`` tensor.
        num_rows: The number ``P`` of rows.
        event_dims: The number of dimensions of the event.

    Returns:
        A ``P x event_shape`` tensor in double precision.
    """
    return value.double().expand(num_rows, *value.shape[value.dim() - event_dims :])


def own_batch_shape(module: Module) -> torch.Size | None:
    """The batch shape of a module's own parameters, if one can tell."""
    if isinstance(module, Kernel):
        return module._batch_shape
    return module.raw_noise.shape[:-1] if isinstance(module, HomoskedasticNoise) else None


def shared_parameters(mll: ExactMarginalLogLikelihood) -> set[Tensor]:
    """The parameters that all members of a batch of models share."""
    own = (None, mll.model._aug_batch_shape)
    return {
        parameter
        for module in mll.model.modules()
        if own_batch_shape(module) not in own
        for parameter in module.parameters(recurse=False)
    }


def is_gaussian_or_known(likelihood: Any) -> bool:
    """Whether noise is Gaussian with one variance, known, or the sum of both, and nothing else.

    Args:
        likelihood: The likelihood.

    Returns:
        Whether it is.
    """
    if type(likelihood) in (FixedNoiseGaussianLikelihood, UnseenNoiseLikelihood):
        return likelihood.second_noise_covar is None
    return type(likelihood) in (GaussianLikelihood, AddedNoiseLikelihood)


class TargetObjective(ModelObjective):
    """The objective of a target model: a residual, and a weighted sum of source posteriors.

    Args:
        mll: The marginal log likelihood of a model for which :meth:`of` is not ``None``.
    """

    @torch.no_grad()
    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        super().__init__(mll)
        model: Any = mll.model
        n, X = self._Y.shape[-1], model.transform_inputs(model.train_inputs[0])
        residual, sources = _residual_and_sources(model.covar_module)
        self._kernel = cast(Stationary, Stationary.of(residual)).name
        # Of few points, all differences between inputs are kept.
        few = self._num_members == 1 and self._X.shape[-1] * n**2 <= MAX_DIFFERENCES
        differences = self._X[0].unsqueeze(-2) - self._X[0] if few else None
        self._squares = None if differences is None else differences.square().flatten(0, 1)
        # The first dimension of both is one if all members have the same inputs and sources.
        self._means = self._covariances = self._covariance = None
        if isinstance(model.mean_module, WeightedSumMean):
            means = model.mean_module.source_means(X).double()
            means = means.reshape(-1, *means.shape[-2:])
            if model.mean_module.task_weights is None:
                self._Y = self._Y - means.sum(dim=-2)
            else:
                self._means = means
        if sources is not None:
            covariances = sources.source_covariances(X).double().flatten(start_dim=-2)
            covariances = covariances.reshape(-1, *covariances.shape[-2:])
            if sources.task_weights is None:
                self._covariance = covariances.sum(dim=-2).reshape(-1, n, n)
            else:
                self._covariances = covariances

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Reads a model.

        Args:
            mll: The marginal log likelihood of a model with target data, in training mode.

        Returns:
            The objective. ``None`` if it has no closed form: it has one for exact GPs with a
            residual whose kernel is RBF or Matérn, with noise that is Gaussian or known, and with
            hyperpriors that are Gamma, log-normal or normal.
        """
        model = cast(Any, mll.model)
        if (
            type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not model.likelihood
            or not getattr(model, "is_fitted_as_exact_gp", False)
            or type(model.mean_module) not in (ConstantMean, WeightedSumMean)
            or not is_gaussian_or_known(model.likelihood)
            or len(_task_weights(model)) > 1
            or not cls.is_served(mll)
        ):
            return None
        residual, sources = _residual_and_sources(model.covar_module)
        parts = [residual, model.mean_module, model.likelihood]
        served = {p for part in [*parts, sources] if part is not None for p in part.parameters()}
        others = any(p.requires_grad and p not in served for p in mll.parameters())
        return None if others or Stationary.of(residual) is None else cls(mll)

    def _read(self, model: Any, num_rows: int) -> Hyperparameters:
        residual, _ = _residual_and_sources(model.covar_module)
        kernel, mean = cast(Stationary, Stationary.of(residual)), model.mean_module
        values = {
            "lengthscale": in_rows(kernel.lengthscale, num_rows, 2),
            "scale": in_rows(kernel.scale, num_rows, 0),
        }
        if self._infers_noise:
            values["noise"] = in_rows(model.likelihood.noise, num_rows, 1)
        if type(mean) is ConstantMean:
            values["constant"] = in_rows(mean.constant, num_rows, 0)
        for weights in _task_weights(model):
            values["weights"] = in_rows(weights.weights, num_rows, 1)
        return values

    def likelihood(self, values: Hyperparameters, rows: Tensor) -> tuple[Tensor, Hyperparameters]:
        """Evaluates the negative log likelihood of the target's points."""
        member = rows % self._num_members
        residual, covariance, n = self._Y[member], None, self._Y.shape[-1]
        if "constant" in values:
            residual = residual - values["constant"].unsqueeze(-1)
        if self._means is not None:
            residual = residual - _by_member(values["weights"], rows, self._means)
        if self._covariances is not None:
            covariance = _by_member(values["weights"].square(), rows, self._covariances)
            covariance = covariance.unflatten(-1, (n, n))
        elif self._covariance is not None:
            covariance = self._covariance[member % len(self._covariance)]
        lengthscale = values["lengthscale"]
        noise = (
            torch.zeros_like(residual) if self._known_noise is None else self._known_noise[member]
        )
        value, slopes = stationary_nll_and_gradient(
            residual,
            self._X[member],
            Stationary(self._kernel, lengthscale, values["scale"]),
            noise + values["noise"] if "noise" in values else noise,
            covariance=covariance,
            max_elements=BLOCK_ELEMENTS if residual.device.type == "cpu" else n * residual.numel(),
            squares=self._squares,
        )
        in_logarithm = slopes.log_lengthscale.unsqueeze(-2).sum_to_size(lengthscale.shape)
        found = {
            "lengthscale": in_logarithm / lengthscale,
            "scale": slopes.log_scale / values["scale"],
            "noise": slopes.noise.sum(dim=-1, keepdim=True),
            "constant": slopes.mean.sum(dim=-1),
        }
        if "weights" in values:
            found["weights"] = torch.zeros_like(values["weights"])
        if self._means is not None:
            found["weights"] += _by_member(slopes.mean, rows, self._means.mT)
        if self._covariances is not None:
            traces = _by_member(slopes.covariance.flatten(-2), rows, self._covariances.mT)
            found["weights"] += 2 * values["weights"] * traces
        return value, found


def _residual_and_sources(kernel: Kernel) -> tuple[Kernel, WeightedSumKernel | None]:
    """Takes a target's kernel apart."""
    if type(kernel) is AdditiveKernel and len(kernel.kernels) == 2 and kernel.active_dims is None:
        residual, sources = kernel.kernels
        if type(sources) is WeightedSumKernel:
            return residual, sources
    return kernel, None


def _task_weights(model: Any) -> set[SourceWeights]:
    """The weights of the sources; usually mean and kernel share them."""
    _, sources = _residual_and_sources(model.covar_module)
    weighted = WeightedSumMean, WeightedSumKernel
    parts = [part for part in (model.mean_module, sources) if isinstance(part, weighted)]
    return {part.task_weights for part in parts if part.task_weights is not None}


def _by_member(values: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiplies ``P x k`` rows of values by their members' ``B x k x l`` matrices."""
    if len(matrices) == 1:
        return values @ matrices[0]
    return (values.unsqueeze(-2) @ matrices[rows % len(matrices)]).squeeze(-2)
