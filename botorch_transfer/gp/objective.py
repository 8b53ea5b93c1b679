r"""Objective functions of hyperparameter fits, and an optimizer that runs many fits at once.

A *start* of a fit is an initial value of all parameters. A *parameter* is a hyperparameter, or the
logarithm of a positive hyperparameter. A tensor of parameters has one row for each start of each
fit. An objective reads the initial parameters from the modules of a model. After the fit, the
objective writes the best parameters back through the setters of the modules.

The likelihood (:mod:`~.gp.likelihood`) and the hyperpriors (:class:`~.gp.hyperpriors.LogPrior`)
have closed-form gradients with respect to the hyperparameters. For a few points, GPyTorch's lazy
kernels and automatic differentiation take ten times as long. With a closed form, BoTorch's batched
L-BFGS-B minimizes all rows at once (:func:`minimize_batched`). Without a closed form, BoTorch's
optimizer runs one start after another by automatic differentiation (:class:`AutogradObjective`).
``fit_gpytorch_mll`` fits every transfer model by :func:`fit_from_starts`.

For a target model, the posterior means ``μ_m`` and covariances ``K_m`` of the source GPs at the
target's training inputs are computed once. The prior mean of the target is ``Σ_m w_m μ_m`` with the
source weights ``w_m``. The additional covariance ``C`` in :mod:`~.gp.likelihood` is
``Σ_m w_m² K_m``. With ``α`` and ``G`` from :mod:`~.gp.likelihood`, the derivative of the negative
log likelihood (NLL) is

.. code-block:: text

    ∂NLL/∂w_m = -αᵀμ_m + 2 w_m tr(G K_m)

Two settings make small fits faster: SciPy's BLAS uses one thread (:func:`single_threaded_scipy`),
and the allocator keeps freed memory (:func:`keep_freed_memory`).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from threading import Lock
from time import monotonic
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.optim.utils import get_parameters, sample_all_priors
from botorch.utils.context_managers import parameter_rollback_ctx
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import Prior
from linear_operator.utils.errors import NotPSDError
from threadpoolctl import ThreadpoolController
from torch import Tensor

from botorch_transfer.gp.combine import SourceWeights, WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.hyperpriors import LogPrior, UnseenNoiseLikelihood
from botorch_transfer.gp.likelihood import (
    AddedNoiseLikelihood,
    added_variance,
    stationary_nll_and_gradient,
)
from botorch_transfer.gp.stationary import Stationary

#: A start has converged if every derivative of the negative log posterior is below this value, in
#: nats. Parameters may then still be far from the optimum, but the objective would hardly improve.
CONVERGED = 0.05

#: A start ends early if its negative log posterior exceeds the value of a converged start by more
#: than this number of nats.
FAR_BEHIND = 10.0

#: Maximum number of elements of the cached differences between a target's inputs.
MAX_DIFFERENCES = 2**18

#: Default maximum number of iterations of a fit, as in SciPy's optimizer.
_MAX_ITERATIONS = 15000

#: Number of starts that are added if no start has a finite optimum.
_FURTHER_STARTS = 4

#: Value that replaces NaN in :func:`minimize_batched`; larger than any value of an objective.
_UNDEFINED_IN_BATCH = 1e100

# Created once, because the search for threaded libraries takes milliseconds.
_LIBRARIES = ThreadpoolController()

_in_force = Lock()


# ------------------------------------------------------------------------------------ the optimizer


@contextmanager
def single_threaded_scipy() -> Iterator[None]:
    """Limits SciPy's BLAS to one thread in the whole process, while the context is active.

    A step of L-BFGS-B works on a dozen numbers, and is slower with several threads. If fits overlap
    in time, only the first fit sets the limit, and restores the original limit at its end. If a
    second fit also did so, it would find a limit of one thread, and restore this limit at its end.
    """
    if not _in_force.acquire(blocking=False):
        yield
        return
    try:
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            yield
    finally:
        _in_force.release()


def keep_freed_memory() -> None:
    """Makes the C library keep freed memory, so that later evaluations can use it again.

    By default, the C library returns large freed blocks to the system. Each new block then causes
    page faults, which take a third of the time of a fit. This function allocates and frees one
    block of just under 32 MiB. Afterwards, the C library keeps freed blocks up to this size.
    Environment variables ``MALLOC_...``, which dask sets for its workers, take precedence.

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
    value_tolerance: float = 2.2e-9,
    margin: float = np.inf,
    num_members: int = 1,
) -> tuple[Tensor, Tensor]:
    """Minimizes many functions of a few parameters at once, by BoTorch's batched L-BFGS-B.

    Args:
        evaluate: Function of two tensors: ``P x k`` parameters, and the index of the start that
            each row belongs to. The function returns ``P`` values and their ``P x k`` gradient. If
            a value or gradient is NaN, the line search backtracks. Converged starts are no longer
            evaluated.
        starts: An ``S x k`` tensor of initial parameters, in double precision. ``evaluate`` gets
            tensors on the device of ``starts``.
        bounds: A ``2 x k`` tensor of lower and upper bounds.
        max_iter: The maximum number of iterations of each start.
        gradient_tolerance: A start has converged if no element of the projected gradient is larger
            than this value.
        callback: Function that is called with the parameters after each iteration of each start.
            The function may raise ``StopIteration`` to end the start.
        value_tolerance: A start has converged if the relative change of its value is smaller than
            this value. The default is SciPy's default.
        margin: A start ends early if its value exceeds the value of a converged start of the same
            function by more than this margin.
        num_members: The number of functions ``B``; start ``i`` belongs to function ``i % B``.

    Returns:
        The final parameters and the final value of each start, an ``S x k`` tensor and an ``S``
        tensor on the CPU. The value is infinite if the function is NaN at the initial parameters.

    Example:
        >>> def parabolas(x, rows):
        ...     return (x - rows.unsqueeze(-1)).square().sum(-1), 2 * (x - rows.unsqueeze(-1))
        >>> bounds = torch.tensor([[-10.0], [1.5]])
        >>> x, value = minimize_batched(parabolas, torch.zeros(3, 1).double(), bounds, max_iter=9)
        >>> x.flatten(), value
        (tensor([0.0000, 1.0000, 1.5000]...), tensor([0.0000, 0.0000, 0.2500]...))
    """
    latest = np.full(len(starts), np.inf)

    def on_arrays(
        x: npt.NDArray[np.float64], batch_indices: list[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        # One transfer in each direction, because each transfer waits for the GPU.
        both = torch.from_numpy(np.column_stack([x, batch_indices])).to(starts)
        value, gradient = evaluate(both[:, :-1], both[:, -1].long())
        packed = torch.column_stack([value, gradient]).cpu().numpy()
        packed[np.isnan(packed).any(axis=-1)] = [_UNDEFINED_IN_BATCH, *[0.0] * x.shape[-1]]
        latest[batch_indices] = packed[:, 0]
        ended = latest.copy()
        ended[batch_indices] = np.inf
        best = ended.reshape(-1, num_members).min(axis=0)[np.mod(batch_indices, num_members)]
        packed[packed[:, 0] > best + margin, 1:] = 0.0  # a zero gradient ends the start
        return packed[:, 0], packed[:, 1:]

    x, found, _ = fmin_l_bfgs_b_batched(
        on_arrays,
        starts.cpu().numpy(),
        bounds=bounds.T.tolist(),
        maxiter=max_iter,
        factr=None,
        ftol=value_tolerance,
        pgtol=gradient_tolerance,
        callback=callback,
        pass_batch_indices=True,
    )
    value = torch.from_numpy(found)
    return torch.from_numpy(x), value.masked_fill(value >= _UNDEFINED_IN_BATCH, torch.inf)


# --------------------------------------------------------------------------------------- objectives


class FitObjective(ABC):
    """Base class of fit objectives: the negative log posterior per training point.

    One call evaluates the objective and its gradient for many rows of parameters. A subclass
    implements the likelihood, the hyperpriors, and their derivatives with respect to the
    hyperparameters.
    """

    #: Mask of the parameters that are logarithms of hyperparameters, a ``k`` boolean tensor.
    is_log: Tensor

    @abstractmethod
    def likelihood(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log likelihood and its derivatives, without an autograd graph.

        Args:
            values: A ``P x k`` tensor of hyperparameters.
            rows: A ``P`` tensor: the index of the optimizer start that each row belongs to.

        Returns:
            ``P`` values, and the ``P x k`` derivatives with respect to the hyperparameters.
        """

    @abstractmethod
    def log_prior(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the log hyperpriors and their derivatives, without an autograd graph.

        Args:
            values: A ``P x k`` tensor of hyperparameters.
            rows: A ``P`` tensor: the index of the optimizer start that each row belongs to.

        Returns:
            ``P`` log densities, and the ``P x k`` derivatives with respect to the hyperparameters.
        """

    @abstractmethod
    def num_points(self, rows: Tensor) -> Tensor:
        """Returns the number of training points for each row of parameters, a ``P`` tensor.

        The objective is the negative log posterior divided by this number.
        """

    @torch.no_grad()
    def __call__(self, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log posterior per training point, and its gradient.

        Args:
            theta: A ``P x k`` tensor of parameters: hyperparameters or their logarithms.
            rows: A ``P`` tensor: the index of the optimizer start that each row belongs to.

        Returns:
            The ``P`` values and their ``P x k`` gradient. Both are NaN for rows whose covariance
            matrix is not positive definite, even with some jitter.
        """
        values = torch.where(self.is_log, theta.exp(), theta)
        value, slope = self.likelihood(values, rows)
        log_prior, prior_slope = self.log_prior(values, rows)
        slope = slope - prior_slope
        gradient = torch.where(self.is_log, slope * values, slope)
        count = self.num_points(rows)
        return (value - log_prior) / count, gradient / count.unsqueeze(-1)


class AutogradObjective:
    """Fit objective by automatic differentiation, for models without closed-form gradients.

    The methods ``read``, ``write`` and ``minimize`` have the same interface as the methods of
    :class:`ClosedFormObjective`. The parameters are the model's PyTorch parameters. For a batch of
    models, BoTorch's optimizer minimizes a single objective of all models.

    Args:
        mll: The marginal log likelihood, in training mode.
        **others: Further arguments of :func:`botorch.optim.fit.fit_gpytorch_mll_scipy`.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood, **others: Any) -> None:
        self.mll, self._others = mll, others
        self._parameters = get_parameters(mll, requires_grad=True)

    def read(self, mll: ExactMarginalLogLikelihood) -> Tensor:
        """Returns the PyTorch parameters that require a gradient, as a ``1 x k`` tensor."""
        parameters = get_parameters(mll, requires_grad=True).values()
        return torch.cat([p.detach().double().flatten() for p in parameters]).unsqueeze(0)

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Sets the PyTorch parameters that require a gradient, from a ``1 x k`` tensor."""
        parameters = self._parameters.values()
        parts = theta[0].split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))

    @single_threaded_scipy()
    def minimize(
        self, starts: Tensor, options: Mapping[str, Any], timeout_sec: float | None
    ) -> tuple[Tensor, Tensor]:
        """Minimizes the objective from one start after another, with SciPy's optimizer.

        Args:
            starts: An ``S x k`` tensor of initial parameters.
            options: Options of SciPy's optimizer.
            timeout_sec: The total time limit for all starts, in seconds; ``None`` for no limit.

        Returns:
            The final parameters and the final value of each start, on the CPU. The value is
            infinite if the start fails numerically.
        """
        theta, value = starts.cpu().clone(), starts.new_full((len(starts),), torch.inf).cpu()
        share = None if timeout_sec is None else timeout_sec / len(starts)
        # Without a closure, BoTorch would fit the members of a batch independently, but members may
        # share parameters.
        closure = get_loss_closure_with_grads(self.mll, self._parameters)
        given = {"closure": closure, "options": options, "timeout_sec": share, **self._others}
        for place in range(len(starts)):
            self.write(starts[place : place + 1])
            with suppress(NotPSDError), warnings.catch_warnings():
                # The result is accepted even if the optimizer stops early.
                warnings.simplefilter("ignore", OptimizationWarning)
                value[place] = float(fit_gpytorch_mll_scipy(self.mll, **given).fval)
                theta[place] = self.read(self.mll)[0]
        return theta, value.masked_fill(value.isnan(), torch.inf)


def gradient_closure(
    evaluate: Callable[[], Tensor], parameters: Mapping[str, Tensor]
) -> Callable[[], tuple[Tensor, list[Tensor | None]]]:
    """Builds a closure that returns a loss and its gradients, for BoTorch's optimizers.

    Args:
        evaluate: Function that adds the gradient of a loss to the parameters' ``grad`` attributes,
            and returns the loss.
        parameters: The PyTorch parameters, by name.

    Returns:
        A closure that returns the loss (on the CPU) and the gradients. If the loss is not finite,
        all gradients are ``None``, so that PyTorch's Adam optimizer does not change the parameters.
    """

    def closure() -> tuple[Tensor, list[Tensor | None]]:
        drop_gradients(parameters)
        loss = evaluate().detach().cpu()  # the only transfer, because a transfer waits for the GPU
        if not bool(loss.isfinite()):
            drop_gradients(parameters)
        return loss, [parameter.grad for parameter in parameters.values()]

    return closure


def drop_gradients(parameters: Mapping[str, Tensor]) -> None:
    """Sets the gradients of parameters to ``None``."""
    for parameter in parameters.values():
        parameter.grad = None


# ---------------------------------------------------------------------- hyperparameters of modules


class Param:
    """Access to one hyperparameter of a GPyTorch module, such as the lengthscales of a kernel.

    Args:
        module: The module.
        name: The name of the module's property, such as ``"lengthscale"``.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        #: The number of dimensions after the batch dimensions.
        self.event_dims = _EVENT_DIMS[name]
        #: The raw parameter; ``None`` if the module has no raw parameter.
        self.raw = module._parameters.get(f"raw_{name}")
        #: The constraint of the raw parameter; ``None`` without a constraint.
        self.constraint = module.constraint_for_parameter_name(f"raw_{name}")
        #: Whether the hyperparameter is fitted.
        self.is_fitted = self.raw is not None and self.raw.requires_grad
        #: Whether the optimizer uses the logarithm of the hyperparameter. This is the case for a
        #: positive hyperparameter if its constraint has a transform.
        self.is_log = name in _POSITIVE and self.raw is not None and self.constraint.enforced

    @property
    def value(self) -> Tensor:
        """The current value of the hyperparameter, a ``batch_shape x event_shape`` tensor."""
        return getattr(self.module, self.name)

    def read(self, batch_shape: torch.Size) -> Tensor:
        """Returns the hyperparameter of each model in a batch of models, a ``B x size`` tensor."""
        value = self.value.detach().double()
        event_shape = value.shape[value.dim() - self.event_dims :]
        shape = batch_shape.numel(), event_shape.numel()
        return value.expand(batch_shape + event_shape).reshape(shape)

    def write(self, values: Tensor) -> None:
        """Sets the hyperparameter in its module.

        Args:
            values: A ``B x size`` tensor: the new value for each model in a batch of models.
        """
        values = values.reshape(self.value.shape).to(self.raw)
        if self.is_log:  # rounding may move a value at a bound out of the bounds
            margin, constraint = 64 * torch.finfo(values.dtype).eps, self.constraint
            lower, upper = constraint.lower_bound, constraint.upper_bound
            values = values.clamp(lower * (1 + margin), upper * (1 - margin))
        self.module.initialize(**{self.name: values})

    def bounds(self, size: int) -> Tensor:
        """Returns the optimizer's bounds of this hyperparameter, a ``2 x size`` tensor.

        The bounds are logarithms if the optimizer uses the hyperparameter's logarithm.
        """
        if self.constraint is None:
            return torch.tensor([[-torch.inf], [torch.inf]]).double().expand(2, size)
        limits = [self.constraint.lower_bound, self.constraint.upper_bound]
        bounds = torch.stack([limit.double().cpu().expand(size) for limit in limits])
        return bounds.clamp_min(0.0).log() if self.is_log else bounds


_EVENT_DIMS = {
    "lengthscale": 2,
    "outputscale": 0,
    "noise": 1,
    "constant": 0,
    "weights": 1,
    "factors": 3,
}
_POSITIVE = frozenset({"lengthscale", "outputscale", "noise"})


def kernel_params(kernel: Any, suffix: str = "") -> dict[str, Param]:
    """Returns the hyperparameters of a stationary kernel, by name.

    Args:
        kernel: An RBF or Matérn kernel, optionally inside a ``ScaleKernel``.
        suffix: The suffix of the names in the result.

    Returns:
        A mapping with the key ``"lengthscale" + suffix`` and, for a ``ScaleKernel``, the key
        ``"outputscale" + suffix``.
    """
    is_scaled = type(kernel) is ScaleKernel
    base = kernel.base_kernel if is_scaled else kernel
    params = {f"lengthscale{suffix}": Param(base, "lengthscale")}
    return params | ({f"outputscale{suffix}": Param(kernel, "outputscale")} if is_scaled else {})


class ClosedFormObjective(FitObjective):
    """Base class of fit objectives with closed-form gradients, for one model or a batch of models.

    The objective reads the hyperparameters from the model's modules, and writes them back.

    Args:
        mll: The marginal log likelihood, in training mode. ``is_served(mll)`` must be true.
    """

    #: Lower and upper bounds of the parameters, a ``2 x k`` tensor.
    bounds: Tensor

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        self.mll, model = mll, cast(Any, mll.model)
        X, Y = model.transform_inputs(model.train_inputs[0]).detach(), model.train_targets
        n, self.batch_shape = Y.shape[-1], Y.shape[:-1]
        self.num_members = self.batch_shape.numel()
        self._X = X.double().reshape(self.num_members, n, X.shape[-1])
        self._Y = Y.double().reshape(self.num_members, n)
        is_learned = isinstance(model.likelihood, GaussianLikelihood)
        known: Any = added_variance(model.likelihood) if is_learned else model.likelihood.noise
        known = torch.as_tensor(known).to(self._Y).expand(Y.shape)
        self._known_noise = known.reshape(self.num_members, n)
        self._num_points = max(n, 1)
        self._set_columns(self.params(model), self._hyperpriors(mll) or [])

    def _set_columns(self, params: Mapping[str, Param], priors: list[tuple[str, Prior]]) -> None:
        """Assigns columns of the parameter tensor to hyperparameters, and builds the hyperpriors.

        There are ``K`` columns. A fit optimizes only the ``k`` columns of fitted hyperparameters.
        """
        sizes = {name: param.read(self.batch_shape).shape[-1] for name, param in params.items()}
        self._sizes, total = sizes, sum(sizes.values())
        columns = self._split(torch.arange(total, device=self._Y.device))
        self._fitted = torch.cat([columns[name] for name, p in params.items() if p.is_fitted])
        logs = [torch.full_like(columns[name], param.is_log) for name, param in params.items()]
        self.is_log = torch.cat(logs).bool()
        bounds = [param.bounds(sizes[name]) for name, param in params.items()]
        self.bounds = torch.cat(bounds, dim=-1)[:, self._fitted.cpu()]
        self._present = self._read_all(params)
        self._log_prior = LogPrior([(prior, sizes[name]) for name, prior in priors])
        self._of_priors = torch.cat([self._fitted[:0], *(columns[name] for name, _ in priors)])

    def _split(self, values: Tensor) -> dict[str, Tensor]:
        """Splits a ``... x K`` tensor by hyperparameters, and returns the pieces by name."""
        pieces = values.split([*self._sizes.values()], dim=-1)
        return dict(zip(self._sizes, pieces, strict=True))

    @classmethod
    @abstractmethod
    def params(cls, model: Any) -> dict[str, Param]:
        """Returns the model's hyperparameters by the names that :meth:`likelihood` uses."""

    @classmethod
    def is_served(cls, mll: ExactMarginalLogLikelihood) -> bool:
        """Returns whether the closed form supports the parameters and hyperpriors of a model.

        Args:
            mll: The marginal log likelihood.

        Returns:
            ``True`` if three conditions hold: :meth:`params` returns all fitted parameters; each
            model of a batch has its own parameters; and each hyperprior of a fitted parameter is
            univariate, and applies to the parameter itself, not to a function of parameters.
        """
        batch_shape = mll.model.train_targets.shape[:-1]
        own = {
            p.raw
            for p in cls.params(mll.model).values()
            if p.is_fitted and p.raw.shape[: p.raw.dim() - p.event_dims] == batch_shape
        }
        fitted = {parameter for parameter in mll.parameters() if parameter.requires_grad}
        return fitted <= own and cls._hyperpriors(mll) is not None

    @classmethod
    @torch.enable_grad()
    def _hyperpriors(cls, mll: ExactMarginalLogLikelihood) -> list[tuple[str, Prior]] | None:
        """Returns pairs of a hyperparameter's name and its prior, for all priors of a model.

        Returns ``None`` if a prior of a fitted hyperparameter is not univariate, or if
        :meth:`params` does not return the value that the prior applies to.
        """
        model: Any = mll.model
        found: list[tuple[str, Prior]] = []
        for _, module, prior, closure, _ in model.named_priors():
            value = closure(module)
            size = value.numel() // model.train_targets.shape[:-1].numel()
            is_univariate = prior.event_shape == () and prior.batch_shape.numel() in (1, size)
            names = [
                name
                for name, param in cls.params(model).items()
                if is_univariate and param.module is module and torch.equal(param.value, value)
            ]
            if value.requires_grad and not names:
                return None
            found += [(name, prior) for name in names]
        return found

    def _read_all(self, params: Mapping[str, Param]) -> Tensor:
        """Returns the fitted and the fixed parameters of each model, a ``B x K`` tensor."""
        values = torch.cat([param.read(self.batch_shape) for param in params.values()], dim=-1)
        values = values.to(self._Y)
        return torch.where(self.is_log, values.log(), values)

    def read(self, mll: ExactMarginalLogLikelihood) -> Tensor:
        """Returns the current values of the parameters that a fit changes.

        Args:
            mll: The marginal log likelihood of the objective's model, or of a copy of this model.

        Returns:
            A ``B x k`` tensor in double precision, one row for each model of a batch. Positive
            hyperparameters are returned as logarithms.
        """
        return self._read_all(self.params(mll.model))[:, self._fitted]

    def write(self, theta: Tensor) -> None:
        """Sets the fitted hyperparameters through the setters of their modules.

        Args:
            theta: A ``B x k`` tensor of parameters, as returned by :meth:`read`.
        """
        full = self._present.index_copy(1, self._fitted, theta.to(self._present))
        values = self._split(torch.where(self.is_log, full.exp(), full))
        for name, param in self.params(self.mll.model).items():
            if param.is_fitted:
                param.write(values[name])

    def minimize(
        self, starts: Tensor, options: Mapping[str, Any], timeout_sec: float | None
    ) -> tuple[Tensor, Tensor]:
        """Minimizes the objective from all starts at once.

        Args:
            starts: An ``(S * B) x k`` tensor of initial parameters. Row ``s * B + b`` is start
                ``s`` of model ``b`` in the batch.
            options: ``{"maxiter": ...}``, the maximum number of iterations of each start.
            timeout_sec: The time in seconds after which all starts stop; ``None`` for no limit.

        Returns:
            The final parameters and the final value of each row, on the CPU. The value is infinite
            if the optimization from this row fails numerically.
        """
        begin = monotonic()

        def stop(_: npt.NDArray[np.float64]) -> None:
            if timeout_sec is not None and monotonic() - begin > timeout_sec:
                raise StopIteration

        return minimize_batched(
            self,
            starts,
            self.bounds,
            options.get("maxiter", _MAX_ITERATIONS),
            gradient_tolerance=CONVERGED / self._num_points,
            callback=stop,
            margin=FAR_BEHIND / self._num_points,
            num_members=self.num_members,
        )

    def __call__(self, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log posterior per training point, and its ``P x k`` gradient.

        ``theta`` contains only the ``k`` fitted parameters. The fixed hyperparameters have the
        model's current values.
        """
        full = self._present[rows % self.num_members].index_copy_(1, self._fitted, theta)
        value, gradient = FitObjective.__call__(self, full, rows)
        return value, gradient[:, self._fitted]

    def log_prior(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the model's log hyperpriors and their derivatives.

        If a hyperparameter has several hyperpriors, their log densities are added.
        """
        density, slope = self._log_prior(values[:, self._of_priors])
        total = torch.zeros_like(values).index_add_(1, self._of_priors, slope)
        return density.sum(dim=-1), total

    def num_points(self, rows: Tensor) -> Tensor:
        """Returns the number of training points for each row of parameters, a ``P`` tensor.

        As in GPyTorch's marginal log likelihood, the log posterior is divided by this number.
        """
        return self._Y.new_full((len(rows),), self._num_points)


def is_gaussian_or_known(likelihood: Any) -> bool:
    """Returns whether a likelihood has one learned noise variance, known variances, or their sum.

    Args:
        likelihood: The likelihood.

    Returns:
        ``True`` for one learned variance, for known variances, and for the sum of both in an
        :class:`AddedNoiseLikelihood`. ``False`` for all other noise models, such as learned
        heteroskedastic noise, and for the sum of both in GPyTorch's ``learn_additional_noise``.
    """
    if type(likelihood) in (FixedNoiseGaussianLikelihood, UnseenNoiseLikelihood):
        return likelihood.second_noise_covar is None
    return type(likelihood) in (GaussianLikelihood, AddedNoiseLikelihood)


class TargetObjective(ClosedFormObjective):
    """Fit objective of a target model whose prior is a residual GP plus weighted source posteriors.

    Args:
        mll: The marginal log likelihood of a model. Use :meth:`of` to check that the objective
            applies.
    """

    @torch.no_grad()
    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        super().__init__(mll)
        model: Any = mll.model
        n, X = self._Y.shape[-1], model.transform_inputs(model.train_inputs[0])
        residual, sources = _residual_and_sources(model.covar_module)
        self._kernel = cast(Stationary, Stationary.of(residual)).name
        self._squares = self._means = self._covariances = None
        # For few points, all differences between inputs are cached.
        if self.num_members == 1 and self._X.shape[-1] * n**2 <= MAX_DIFFERENCES:
            self._squares = (self._X[0].unsqueeze(-2) - self._X[0]).square().flatten(0, 1)
        if isinstance(mean := model.mean_module, WeightedSumMean):
            self._means = _of_members(mean.source_means(X), mean.task_weights)
        if sources is not None:
            covariances = sources.source_covariances(X).flatten(start_dim=-2)
            self._covariances = _of_members(covariances, sources.task_weights)

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Builds the fit objective of a model, if the objective has closed-form gradients.

        The closed form applies to exact GPs whose residual has an RBF or Matérn kernel. The noise
        variances must be known, learned (one variance for all points), or the sum of a known and a
        learned variance. Hyperpriors of lengthscales, signal variance, noise, mean and weights must
        be univariate.

        Args:
            mll: The marginal log likelihood of a model with target data, in training mode.

        Returns:
            The objective; ``None`` if the closed form does not apply to the model.
        """
        model = cast(Any, mll.model)
        if (
            type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not model.likelihood
            or not getattr(model, "is_fitted_as_exact_gp", False)
            or type(model.mean_module) not in (ConstantMean, WeightedSumMean)
            or not is_gaussian_or_known(model.likelihood)
            or len(_task_weights(model)) > 1
            or Stationary.of(_residual_and_sources(model.covar_module)[0]) is None
        ):
            return None
        return cls(mll) if cls.is_served(mll) else None

    @classmethod
    def params(cls, model: Any) -> dict[str, Param]:
        """Returns all hyperparameters of the target model, by name."""
        params = kernel_params(_residual_and_sources(model.covar_module)[0])
        if isinstance(model.likelihood, GaussianLikelihood):
            params["noise"] = Param(model.likelihood.noise_covar, "noise")
        if type(model.mean_module) is ConstantMean:
            params["constant"] = Param(model.mean_module, "constant")
        for weights in _task_weights(model) - {None}:
            params["weights"] = Param(weights, "weights")
        return params

    def likelihood(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log likelihood of the target data, and its derivatives."""
        given = self._split(values)
        member, one = rows % self.num_members, torch.ones_like(values[:, :1])
        residual, covariance, n = self._Y[member], None, self._Y.shape[-1]
        noise, scale = self._known_noise[member], given.get("outputscale", one)
        weights = given.get("weights", one)
        if "noise" in given:
            noise = noise + given["noise"]
        if "constant" in given:
            residual = residual - given["constant"]
        if self._means is not None:
            residual = residual - _by_member(weights, rows, self._means)
        if self._covariances is not None:
            covariance = _by_member(weights.square(), rows, self._covariances)
            covariance = covariance.unflatten(-1, (n, n))
        value, slopes = stationary_nll_and_gradient(
            residual,
            self._X[member],
            Stationary(self._kernel, given["lengthscale"].unsqueeze(-2), scale.squeeze(-1)),
            noise,
            covariance=covariance,
            squares=self._squares,
        )
        in_weights = torch.zeros_like(weights)
        if self._means is not None:
            in_weights += _by_member(slopes.mean, rows, self._means.mT)
        if self._covariances is not None:
            traces = _by_member(slopes.covariance.flatten(-2), rows, self._covariances.mT)
            in_weights += 2 * weights * traces
        found = slopes._asdict() | {"weights": in_weights}
        return value, torch.cat([found[name] for name in given], dim=-1)


def _residual_and_sources(kernel: Kernel) -> tuple[Kernel, WeightedSumKernel | None]:
    """Splits a target model's kernel into the residual kernel and the kernel of the sources.

    The second kernel is ``None`` if the target model's kernel has no term for sources.
    """
    if type(kernel) is AdditiveKernel and len(kernel.kernels) == 2 and kernel.active_dims is None:
        residual, sources = kernel.kernels
        if type(sources) is WeightedSumKernel:
            return residual, sources
    return kernel, None


def _task_weights(model: Any) -> set[SourceWeights | None]:
    """Returns the weight objects of a model's mean and kernel, as a set.

    Usually, the mean and the kernel share one object, and the set has one element. The set contains
    ``None`` if the mean or the kernel is an unweighted sum over sources.
    """
    _, sources = _residual_and_sources(model.covar_module)
    weighted = WeightedSumMean, WeightedSumKernel
    parts = model.mean_module, sources
    return {part.task_weights for part in parts if isinstance(part, weighted)}


def _of_members(values: Tensor, weights: SourceWeights | None) -> Tensor:
    """Flattens batch dimensions of values; sums the values over the sources without weights.

    Args:
        values: A ``batch_shape x S x l`` tensor: means or flattened covariances of ``S`` sources.
        weights: The weights of the sources, or ``None``. The caller applies the weights.

    Returns:
        A ``B x S x l`` tensor with weights, or a ``B x 1 x l`` tensor without weights. ``B`` is the
        number of models in the batch, or one if all models have the same inputs.
    """
    values = values.double().reshape(-1, *values.shape[-2:])
    return values if weights is not None else values.sum(dim=-2, keepdim=True)


def _by_member(values: Tensor, rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiplies each row of a ``P x k`` tensor by the ``k x l`` matrix of the row's model.

    There are ``B`` models and matrices. Row ``i`` belongs to model ``rows[i] % B``.
    """
    if len(matrices) == 1:
        return values @ matrices[0]
    return (values.unsqueeze(-2) @ matrices[rows % len(matrices)]).squeeze(-2)


# ----------------------------------------------------------------------------------- several starts


def fit_from_starts(
    mll: ExactMarginalLogLikelihood,
    num_restarts: int,
    seed: int,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
    **others: Any,
) -> None:
    """Fits a model from several starts and keeps the best optimum.

    The fit maximizes the marginal log likelihood plus the log hyperpriors. If the gradients have a
    closed form, if ``options`` has no key except ``maxiter``, and if there are no further
    arguments, each model of a batch keeps its own best optimum. Otherwise, BoTorch's optimizer fits
    the model, and a whole batch keeps the start with the best sum of the models' objectives.

    Args:
        mll: The marginal log likelihood of a single-outcome model with data, in training mode.
        num_restarts: The number of starts that are sampled from the hyperpriors. One more start
            uses the model's current hyperparameters.
        seed: The seed of the samples.
        options: ``{"maxiter": ...}``, or options of SciPy's optimizer.
        timeout_sec: The time in seconds after which all starts stop; ``None`` for no limit.
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
        f"The fit of {type(mll.model).__name__} fails from each start: the covariance matrix is "
        "not positive definite, or the objective is NaN. Check the hyperpriors and the inputs for "
        "extreme scales, or use another kernel."
    )


def _draw_starts(
    objective: ClosedFormObjective | AutogradObjective, num_restarts: int, seed: int
) -> Tensor:
    """Returns the starts of a fit: the model's current parameters and samples of the hyperpriors.

    The result is an ``S x B x k`` tensor. The samples are equal on all devices, because they are
    drawn on the CPU. If the model is on another device, the samples are drawn from a copy of the
    model on the CPU. Some GPyTorch priors, such as ``LogNormalPrior``, sample only on the CPU.
    """
    mll, starts = objective.mll, [objective.read(objective.mll)]
    is_elsewhere = starts[0].device.type != "cpu"
    on_cpu = deepcopy(mll).cpu() if is_elsewhere and num_restarts > 0 else mll
    every = dict(on_cpu.named_parameters())
    with parameter_rollback_ctx(every), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for _ in range(num_restarts):
            with suppress(RuntimeError):  # a sample outside the bounds keeps the old value
                sample_all_priors(on_cpu.model)
            starts.append(objective.read(on_cpu).to(starts[0]))
    return torch.stack(starts)
