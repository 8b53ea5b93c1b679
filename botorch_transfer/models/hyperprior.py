"""MPHD and HyperBO+: a GP whose hyperparameters have pre-trained hyperpriors, fitted by MAP.

Read it for the mean, kernel and noise that a :class:`Hyperprior` describes, and for the model that
is fitted with them; ``fully_bayesian`` averages over the same hyperparameters.

.. [Fan2024mphd]
    Z. Fan, X. Han and Z. Wang. Transfer Learning for Bayesian Optimization on Heterogeneous Search
    Spaces. TMLR 2024. arXiv:2309.16597.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.constraints import LogTransformedInterval
from botorch.utils.types import DEFAULT
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import Prior, UniformPrior
from torch import Tensor
from torch.nn import Module

from botorch_transfer._botorch import DefaultType
from botorch_transfer.data import Domain
from botorch_transfer.hyperpriors import Hyperparameter
from botorch_transfer.hyperpriors.priors import log_density_prior, make_prior
from botorch_transfer.hyperpriors.spec import start_and_bounds
from botorch_transfer.kernels.stationary import stationary_function
from botorch_transfer.models.inputs import PriorOrData, check_target
from botorch_transfer.models.modular import ModularTransferGP, resolve_prior
from botorch_transfer.pretraining.hyperprior.hyperprior import Hyperprior

_LEAST_NOISE = 1e-6
"""The lowest noise variance, relative to the signal's."""


def hyperprior_mean(hyperprior: Hyperprior, batch_shape: torch.Size) -> ConstantMean:
    """Builds the constant mean, at its hyperprior's mean.

    Args:
        hyperprior: The hyperprior; its dtype and device become the module's.
        batch_shape: The batch shape of the model.

    Returns:
        The mean, its hyperprior registered unless that is an empirical one.
    """
    prior = hyperprior.hyperprior_of("constant")
    constraint = Interval(prior.low, prior.high) if isinstance(prior, UniformPrior) else None
    mean = ConstantMean(
        constant_prior=None if hyperprior.kind == "empirical" else prior,
        constant_constraint=constraint,
        batch_shape=batch_shape,
    ).to(hyperprior.constant_parameters)
    mean.constant = prior.mean.expand(batch_shape)
    return mean


def hyperprior_kernel(
    hyperprior: Hyperprior,
    dim: int,
    context: Tensor | None,
    batch_shape: torch.Size,
    bounded: bool = True,
) -> ScaleKernel:
    """Builds the scaled kernel with a lengthscale for each input, at its hyperpriors' means.

    Args:
        hyperprior: The hyperprior; its dtype and device become the module's.
        dim: The number of inputs ``d``.
        context: A ``d x s`` tensor that describes the inputs.
        batch_shape: The batch shape of the model.
        bounded: Whether the hyperparameters will be fitted, and so need bounds.

    Returns:
        The kernel, its hyperpriors registered unless they are empirical.
    """
    priors = hyperprior.lengthscale_prior(dim, context), hyperprior.hyperprior_of("outputscale")
    starts, lower, upper = zip(*map(start_and_bounds, priors), strict=True)
    constraints = [
        LogTransformedInterval(*bounds) if bounded else Positive()
        for bounds in zip(lower, upper, strict=True)
    ]
    registered = [
        None if hyperprior.kind == "empirical" else log_density_prior(prior) for prior in priors
    ]
    kernel = ScaleKernel(
        stationary_function(hyperprior.kernel).make_kernel(
            ard_num_dims=dim,
            batch_shape=batch_shape,
            lengthscale_prior=registered[0],
            lengthscale_constraint=constraints[0],
        ),
        batch_shape=batch_shape,
        outputscale_prior=registered[1],
        outputscale_constraint=constraints[1],
    ).to(hyperprior.constant_parameters)
    kernel.base_kernel.lengthscale = starts[0].expand(*batch_shape, 1, dim)
    kernel.outputscale = starts[1].expand(batch_shape)
    return kernel


def hyperprior_noise(hyperprior: Hyperprior) -> Hyperparameter:
    """Says what is known of the noise variance: hyperprior, start and bounds."""
    prior = hyperprior.hyperprior_of("noise")
    start, lower, upper = (float(value) for value in start_and_bounds(prior))
    least = _LEAST_NOISE * float(hyperprior.hyperprior_of("outputscale").mean)
    make = partial(_noise_prior, hyperprior.families["noise"], hyperprior.noise_parameters)
    return Hyperparameter(
        make_prior=None if hyperprior.kind == "empirical" else make,
        start=max(start, least),
        lower=max(lower, least),
        upper=max(upper, least),
    )


def _noise_prior(family: str, parameters: Tensor) -> Prior:
    return log_density_prior(make_prior(family, parameters))


HyperpriorOrData = PriorOrData | Sequence[Domain]


class HyperpriorModel(ModularTransferGP):
    """Base class of models whose source knowledge is in their hyperparameters alone."""

    has_source_covariance = False

    prior: Hyperprior

    @property
    def residual_covar_module(self) -> Kernel:
        """The kernel: all of it is the target's own."""
        return self.covar_module


class HyperpriorGP(HyperpriorModel):
    r"""A GP whose hyperparameters' hyperpriors were learned from other search spaces.

    It is an ordinary exact GP with a constant mean and a scaled Matérn kernel with a lengthscale
    for each input. The source domains enter through the hyperpriors, a Normal and Gammas. These are
    registered as GPyTorch's are, so that ``fit_gpytorch_mll`` finds the MAP of [Fan2024mphd]_ (Eq.
    6). The Gammas count by the density of the logarithm, see
    :class:`~botorch_transfer.hyperpriors.priors.LogDensityGammaPrior`: a hyperparameter of which
    the data say nothing stays at its hyperprior's mean. Use it where the target has another search
    space than all earlier tasks, even of another dimension.

    Args:
        prior: The :class:`Hyperprior`, or what to learn it from: a sequence of :class:`Domain`; or
            source tasks, which then are the only domain. The same data are pre-trained once.
        likelihood: A likelihood; by default Gaussian with the hyperprior's noise.
        covar_module: A kernel to use instead of the hyperprior's.
        outcome_transform: By default the standardization by the target's outcomes, and by what is
            typical of source tasks where there are fewer than two; none if the hyperprior speaks in
            raw units. ``None`` if the outcomes are in the hyperprior's units already.
        input_transform: A frozen transform of the inputs to the unit cube, for instance
            ``Normalize(d, bounds=...)``; by default the one that all source domains share, if it
            is of as many inputs.
        context: A ``d x s`` tensor that describes the inputs as those of the source domains were
            described; by default ``default_context(d)``: continuous inputs. Pass
            ``default_context(d, discrete_dims)`` if some are discrete.
        warm_start: The model of the last step, or its parameters by name: where a fit starts
            instead of the hyperpriors' means.

    Raises:
        ValueError: If the hyperprior is empirical, which has no maximum to look for, or the input
            transform is not frozen.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> lab = Domain([(X, X.sum(-1, keepdim=True)), (X, X.prod(-1, keepdim=True))], name="lab")
        >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
        >>> hyperprior = Hyperprior.fit([lab, shop], kind="universal")
        >>> train_X = torch.rand(4, 3, dtype=torch.double)
        >>> model = HyperpriorGP(train_X, train_X.sum(-1, keepdim=True), hyperprior)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.covar_module.base_kernel.lengthscale_prior
        LogDensityGammaPrior()
    """

    mean_module: ConstantMean

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: HyperpriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        context: Tensor | None = None,
        warm_start: Module | Mapping[str, Tensor] | None = None,
    ) -> None:
        check_target(train_X, train_Y, train_Yvar, None, task_feature)
        hyperprior = resolve_prior(Hyperprior, prior, input_transform).to(train_X)
        if hyperprior.kind == "empirical":
            raise ValueError(
                "An empirical hyperprior has no density to maximize: use "
                "FullyBayesianHyperpriorGP, or Hyperprior.refit(kind='universal')."
            )
        batch_shape = train_X.shape[:-2]
        if covar_module is None:
            dim = train_X.shape[-1] - (task_feature is not None)
            covar_module = hyperprior_kernel(hyperprior, dim, context, batch_shape)
        super().__init__(
            train_X,
            train_Y,
            prior=hyperprior,
            mean_module=hyperprior_mean(hyperprior, batch_shape),
            covar_module=covar_module,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
            noise=hyperprior_noise(hyperprior),
        )
        if warm_start is not None:
            self._start_from(warm_start)

    def _start_from(self, values: Module | Mapping[str, Tensor]) -> None:
        """Takes over another model's parameters where they fit, moved into this one's bounds."""
        given: Mapping[str, Any] = (
            dict(values.named_parameters()) if isinstance(values, Module) else values
        )
        of_kernel = {f"covar_module.{name}" for name, _ in self.covar_module.named_parameters()}
        if of_kernel and not of_kernel & set(given):
            raise ValueError(
                "warm_start has none of the kernel's parameters: give the last step's model, or "
                "its parameters by name."
            )
        for name, parameter, constraint in cast(Any, self).named_parameters_and_constraints():
            value = given.get(name)
            if value is None or value.shape != parameter.shape:
                continue
            value = value.detach().to(parameter)
            if isinstance(constraint, LogTransformedInterval):
                bounds = (constraint.lower_bound, constraint.upper_bound)
                lower, upper = (constraint.inverse_transform(bound) for bound in bounds)
                value = torch.maximum(torch.minimum(value, upper), lower)
            with torch.no_grad():
                parameter.copy_(value)
