"""GPs with pre-trained hyperpriors: hyperparameters are fitted by MAP, or averaged over.

The MPHD model fits mean, kernel and noise by MAP with the hyperpriors of a :class:`Hyperprior`. The
HyperBO+ model draws hyperparameters from the hyperprior, weights the samples by the likelihood of
the target's data, and resamples an ensemble of GPs. BoTorch's acquisition functions average over
the members of this ensemble.

.. [Fan2022hyperboplus]
    Z. Fan, X. Han and Z. Wang. HyperBO+: Pre-training a universal prior for Bayesian optimization
    with hierarchical Gaussian processes. 2022. arXiv:2212.10538.

.. [Fan2024mphd]
    Z. Fan, X. Han and Z. Wang. Transfer Learning for Bayesian Optimization on Heterogeneous Search
    Spaces. TMLR 2024. arXiv:2309.16597.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.cross_validation import ensemble_loo_cv
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.constraints import LogTransformedInterval
from botorch.utils.types import DEFAULT
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import Prior, UniformPrior
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData
from botorch_transfer.data import Domain
from botorch_transfer.gp.hyperpriors import (
    GPHyperparameters,
    Hyperparameter,
    log_density_prior,
    residual_kernel,
    start_and_bounds,
)
from botorch_transfer.hyperprior.fit import HyperparameterDraws, log_likelihoods
from botorch_transfer.hyperprior.prior import Hyperprior
from botorch_transfer.modular import ModularTransferGP, outcome_transform_for, resolve_prior

#: A hyperprior, or data to pre-train a hyperprior: domains, or the source data of one domain.
HyperpriorOrData = PriorOrData | Sequence[Domain]


#: Lower bound of the noise variance in a fit, relative to the signal variance.
LEAST_NOISE = 1e-6

#: Lower bound of hyperparameters drawn from a hyperprior; the upper bound is ``1 / _TINY``.
_TINY = 1e-18

_WIDE = GPHyperparameters(*[Hyperparameter(None, 1.0, lower=_TINY, upper=1 / _TINY)] * 3)


def learned_hyperparameter(prior: Prior, least: float = 0.0) -> Hyperparameter:
    """Describes a positive hyperparameter with a given hyperprior, for a MAP fit.

    The MAP fit uses the density of the hyperparameter's logarithm.

    Args:
        prior: A univariate Gamma or uniform hyperprior.
        least: Lower limit of the returned starting value and of both returned bounds. Numbers below
            ``least`` are replaced by ``least``.

    Returns:
        The hyperprior, the starting value (the hyperprior's mean) and the bounds.
    """
    start, lower, upper = (max(float(part), least) for part in start_and_bounds(prior))
    return Hyperparameter(partial(deepcopy, log_density_prior(prior)), start, lower, upper)


def hyperprior_noise(hyperprior: Hyperprior) -> Hyperparameter:
    """Describes the noise variance: its hyperprior, starting value and bounds.

    The starting value and the bounds are at least ``LEAST_NOISE`` times the mean of the signal
    variance's hyperprior.
    """
    least = LEAST_NOISE * float(hyperprior.priors["outputscale"].mean)
    return learned_hyperparameter(hyperprior.priors["noise"], least)


def hyperprior_mean(hyperprior: Hyperprior, batch_shape: torch.Size) -> ConstantMean:
    """Builds a constant mean module that starts at the mean of its hyperprior.

    Args:
        hyperprior: The hyperprior, which also determines the dtype and the device of the module.
        batch_shape: The batch shape of the model.

    Returns:
        The mean module, with its hyperprior registered.
    """
    prior = hyperprior.priors["constant"]
    constraint = Interval(prior.low, prior.high) if isinstance(prior, UniformPrior) else None
    mean = ConstantMean(prior, constant_constraint=constraint, batch_shape=batch_shape)
    mean = mean.to(hyperprior.constant_parameters)
    mean.constant = prior.mean.expand(batch_shape)
    return mean


def hyperprior_kernel(
    hyperprior: Hyperprior, dim: int, context: Tensor | None, batch_shape: torch.Size
) -> ScaleKernel:
    """Builds a scaled ARD kernel whose hyperparameters start at the means of their hyperpriors.

    Args:
        hyperprior: The hyperprior, which also determines the dtype and the device of the kernel.
        dim: The number of inputs ``d``.
        context: A ``d x s`` tensor that describes the inputs, or ``None``: see
            :meth:`Hyperprior.lengthscale_prior`.
        batch_shape: The batch shape of the model.

    Returns:
        The kernel, with its hyperpriors registered.
    """
    prior = hyperprior.lengthscale_prior(dim, context)
    lengthscale = replace(_WIDE.lengthscale, make_prior=partial(log_density_prior, prior))
    outputscale = learned_hyperparameter(hyperprior.priors["outputscale"])
    own = replace(_WIDE, lengthscale=lengthscale, outputscale=outputscale)
    kernel = residual_kernel(dim, batch_shape, own, hyperprior.kernel)
    found: Any = start_and_bounds(prior)
    starts, lower, upper = found
    bounds = LogTransformedInterval(lower, upper)  # separate bounds for each input
    kernel.base_kernel.register_constraint("raw_lengthscale", bounds)
    kernel.to(hyperprior.constant_parameters)
    kernel.base_kernel.lengthscale = starts.expand(*batch_shape, 1, dim)
    kernel.outputscale = outputscale.start
    return kernel


class HyperpriorGP(ModularTransferGP):
    r"""A GP with hyperpriors that were learned from other search spaces.

    The model is an ordinary exact GP with a constant mean and a scaled Matérn kernel with a
    lengthscale for each input. It depends on the source domains only through the hyperpriors: a
    Normal for the mean, and Gammas for the other hyperparameters. The hyperpriors are registered in
    the usual way of GPyTorch, so that ``fit_gpytorch_mll`` finds the MAP estimate of [Fan2024mphd]_
    (Eq. 6). The MAP estimate uses the density of a hyperparameter's logarithm, see
    :class:`~botorch_transfer.gp.hyperpriors.LogDensityGammaPrior`. So if the data do not determine
    a hyperparameter, the MAP estimate is the mean of its hyperprior. Use the model if the target
    has a new search space, which may even have a new number of inputs.

    Args:
        prior: The :class:`Hyperprior`, or data to learn it from: a sequence of :class:`Domain`, or
            source tasks of a single domain. Pre-training is cached, so equal data need no second
            pre-training.
        likelihood: A likelihood; by default Gaussian, with the hyperprior of the noise variance.
        covar_module: A kernel to use instead of the hyperprior's kernel.
        outcome_transform: The default standardizes by the target's outcomes, or by typical source
            moments if the target has fewer than two outcomes. If ``outcome_scale="raw"``, there is
            no transform by default. Pass ``None`` if the outcomes are in the hyperprior's units
            already. ``Log``, ``Bilog`` and ``Power`` are also applied to the source outcomes. In a
            ``ChainedOutcomeTransform``, they must precede all other transforms.
        input_transform: A frozen transform of the inputs to the unit cube, for instance
            ``Normalize(d, bounds=...)``; by default the source domains' common transform, if it has
            ``d`` inputs.
        context: A ``d x s`` tensor that describes each input by the same ``s`` features as in the
            source domains. The default is ``default_context(d)``, which treats all inputs as
            continuous. Pass ``default_context(d, discrete_dims)`` if some inputs are discrete.

    Raises:
        ValueError: If the hyperprior is empirical, or the input transform is not frozen.

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

    prior_class = Hyperprior

    prior: Hyperprior
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
    ) -> None:
        hyperprior = resolve_prior(Hyperprior, prior, input_transform, outcome_transform)
        hyperprior = hyperprior.to(train_X)
        if hyperprior.kind == "empirical":
            raise ValueError(
                "An empirical hyperprior has no density to maximize: use "
                "FullyBayesianHyperpriorGP, or fit a hyperprior with kind='universal'."
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


#: A smaller effective sample size causes a warning.
MIN_EFFECTIVE_SAMPLES = 5.0

#: Lower bound of a sampled noise variance, relative to the signal variance of the same sample.
_LEAST_DRAWN_NOISE = 1e-8


class FullyBayesianHyperpriorGP(ModularTransferGP):
    r"""A GP averaged over the posterior of its hyperparameters under a pre-trained hyperprior.

    Hyperparameters are drawn from the hyperprior and weighted by the likelihood of the target's
    data (Eq. 5 of [Fan2022hyperboplus]_). The members of an ensemble are resampled from these draws
    in proportion to the draws' weights, and then have equal weights. BoTorch's acquisition
    functions average over the members, and ``posterior`` returns a ``GaussianMixturePosterior``.
    Nothing is fitted: ``fit_gpytorch_mll`` returns at once. Use the model with few target points,
    where a MAP estimate would be overconfident. :class:`HyperpriorGP` is cheaper.

    Like BoTorch's other ensembles, the model supports analytic and Monte Carlo acquisition
    functions, knowledge gradients, Thompson sampling, joint entropy search, conditioning and
    ``loo_cv``. It does not support other entropy searches or batches of targets.

    Args:
        train_X: An ``n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: An ``n x 1`` tensor of target outcomes, to be maximized.
        prior: The :class:`Hyperprior`, or data to learn it from: a sequence of :class:`Domain`, or
            source tasks of a single domain. Pre-training is cached, so equal data need no second
            pre-training.
        train_Yvar: An ``n x 1`` tensor of known noise variances. If omitted, the noise variance is
            drawn from the hyperprior.
        likelihood: Must be omitted, because the noise is drawn from the hyperprior.
        covar_module: Must be omitted, because the kernel is drawn from the hyperprior.
        outcome_transform: The default standardizes by the target's outcomes, or by typical source
            moments if the target has fewer than two outcomes. If ``outcome_scale="raw"``, there is
            no transform by default. Pass ``None`` if the outcomes are in the hyperprior's units
            already. ``Log``, ``Bilog`` and ``Power`` are also applied to the source outcomes. In a
            ``ChainedOutcomeTransform``, they must precede all other transforms.
        input_transform: A frozen transform of the inputs to the unit cube, for instance
            ``Normalize(d, bounds=...)``; by default the source domains' common transform, if it has
            ``d`` inputs.
        context: A ``d x s`` tensor that describes each input by the same ``s`` features as in the
            source domains. The default is ``default_context(d)``, which treats all inputs as
            continuous. Pass ``default_context(d, discrete_dims)`` if some inputs are discrete.
        num_samples: The number of samples from the hyperprior. Use 4,096 or more. The paper uses
            100 samples, but with a dozen points nearly all weight is on a few of 100 samples. See
            ``effective_sample_size``.
        num_members: The number of members of the ensemble.
        seed: The seed of the samples.

    Raises:
        ValueError: If a likelihood or kernel is given, if ``num_samples`` or ``num_members`` is not
            positive, or if the input transform is not frozen.

    Example:
        >>> from gpytorch.priors import GammaPrior, NormalPrior
        >>> positive, noise = GammaPrior(2.0, 4.0), GammaPrior(1.0, 100.0)
        >>> hyperprior = Hyperprior.specified(NormalPrior(0.0, 1.0), positive, positive, noise)
        >>> X = torch.rand(4, 3, dtype=torch.double)
        >>> model = FullyBayesianHyperpriorGP(X, X.sum(-1, keepdim=True), hyperprior)
        >>> model.posterior(torch.rand(5, 1, 3, dtype=torch.double)).mean.shape
        torch.Size([5, 100, 1, 1])
        >>> bool(model.effective_sample_size > 5)
        True
    """

    prior_class = Hyperprior
    _is_ensemble = True

    prior: Hyperprior
    mean_module: ConstantMean
    covar_module: ScaleKernel
    #: Effective sample size of the weighted hyperparameter samples, a scalar tensor.
    effective_sample_size: Tensor

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
        num_samples: int = 4096,
        num_members: int = 100,
        seed: int = 0,
    ) -> None:
        if train_X.dim() != 2:
            raise InputDataError(
                f"train_X has shape {tuple(train_X.shape)}, but this ensemble does not support "
                "batches of targets: give an n x d tensor."
            )
        for name, part in {"likelihood": likelihood, "covar_module": covar_module}.items():
            if part is not None:
                raise ValueError(
                    f"The {name} comes from the hyperprior: leave out {name}=, or use "
                    f"HyperpriorGP, which takes a {name}."
                )
        if num_samples < 1 or num_members < 1:
            raise ValueError("num_samples= and num_members= must be positive.")
        hyperprior = resolve_prior(Hyperprior, prior, input_transform, outcome_transform)
        dim = train_X.shape[-1] - (task_feature is not None)
        # Samples are drawn in the hyperprior's precision, so that they do not depend on the data's
        # precision.
        draws = hyperprior.sample(num_samples, dim, context, seed).to(train_X)
        hyperprior = hyperprior.to(train_X)
        members = torch.Size([num_members])
        outcome_transform = outcome_transform_for(hyperprior, outcome_transform, train_Y)
        Y, Yvar = train_Y, train_Yvar
        if outcome_transform is not None:
            outcome_transform = outcome_transform.to(train_X).train()
            Y, Yvar = outcome_transform(train_Y, train_Yvar, X=train_X)
        super().__init__(
            train_X.expand(*members, *train_X.shape),
            Y.expand(*members, *Y.shape),
            prior=hyperprior,
            mean_module=ConstantMean(batch_shape=members),
            covar_module=residual_kernel(dim, members, _WIDE, hyperprior.kernel),
            train_Yvar=None if Yvar is None else Yvar.expand(*members, *Yvar.shape),
            # The outcomes are transformed above, by one transform for all members.
            outcome_transform=None,
            input_transform=input_transform,
            task_feature=task_feature,
            noise=replace(_WIDE.noise, start=hyperprior_noise(hyperprior).start),
        )
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        self._choose_members(draws, train_X, seed)
        self.requires_grad_(False)
        self.to(train_X)

    @torch.no_grad()
    def _choose_members(self, draws: HyperparameterDraws, train_X: Tensor, seed: int) -> None:
        """Resamples the ensemble from the draws, in proportion to the likelihood of the data."""
        X = self.transform_inputs(train_X)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = self.likelihood.noise[0] if known else None
        draws = _with_lower_bounds(draws)
        weights = log_likelihoods(draws, X, self.train_targets[0], noise, self.prior.kernel)
        # If every draw has zero likelihood, use equal weights and report an effective sample size
        # of 0.
        effective = effective_sample_size(weights).nan_to_num(nan=0.0).to(train_X)
        if not bool(weights.isfinite().any()):
            weights = torch.zeros_like(weights)
        self.register_buffer("effective_sample_size", effective)
        if float(effective) < min(MIN_EFFECTIVE_SAMPLES, 0.5 * len(weights)):
            warnings.warn(
                f"The effective sample size is only {float(effective):.1f} of {len(weights):,} "
                "draws, because the target's data are unlikely under the hyperprior: raise "
                "num_samples=, or use HyperpriorGP.",
                RuntimeWarning,
                stacklevel=3,
            )
        chosen = systematic_resample(weights, self.batch_shape[0], seed)
        self.mean_module.constant = draws.constant[chosen]
        self.covar_module.outputscale = draws.outputscale[chosen]
        self.covar_module.base_kernel.lengthscale = draws.lengthscale[chosen].unsqueeze(-2)
        if not known:
            self.likelihood.noise = draws.noise[chosen].unsqueeze(-1)

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GaussianMixturePosterior | GPyTorchPosterior | TransformedPosterior:
        """Evaluates the posterior of every GP in the ensemble.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            output_indices: Must be omitted or ``[0]``.
            observation_noise: Whether to add the members' noise; or a ``batch_shape x q x 1``
                tensor of noise variances, in the model's own units. A
                ``batch_shape x num_members x q x 1`` tensor has separate noise variances for each
                member.
            posterior_transform: A transform of the posterior.
            **kwargs: Ignored.

        Returns:
            A mixture of Gaussians with moments ``batch_shape x num_members x q x 1``.
        """
        if isinstance(observation_noise, Tensor) and observation_noise.dim() <= X.dim():
            observation_noise = observation_noise.unsqueeze(MCMC_DIM)
        posterior = super().posterior(
            X=X.unsqueeze(MCMC_DIM),
            output_indices=output_indices,
            observation_noise=observation_noise,
            posterior_transform=posterior_transform,
            **kwargs,
        )
        if not isinstance(posterior, GPyTorchPosterior):
            return posterior
        return GaussianMixturePosterior(distribution=posterior.distribution)

    def fantasize(self, X: Tensor, *args: Any, **kwargs: Any) -> Self:
        """Conditions every GP in the ensemble on samples of its own posterior.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            *args: See BoTorch.
            **kwargs: See BoTorch.

        Returns:
            A batch of models, with the members of the ensemble as last batch dimension. The batch
            is not marked as an ensemble, because BoTorch's knowledge gradients average over the
            members explicitly.
        """
        fantasies = super().fantasize(X, *args, **kwargs)
        fantasies._is_ensemble = False
        return fantasies

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Computes the leave-one-out posterior of each target point, with fixed hyperparameters.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A Gaussian mixture of shape ``n x num_members x 1 x 1`` in the user's units. Each
            element of the first dimension is the prediction of one target point.
        """
        return ensemble_loo_cv(self, observation_noise=observation_noise).posterior

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """Conditions every GP in the ensemble on further points, without resampling the ensemble.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs for all members. If ``Y`` has a dimension
                of members, ``X`` may be a ``batch_shape x num_members x q x d`` tensor.
            Y: A ``batch_shape x q x 1`` tensor of outcomes; or a
                ``batch_shape x num_members x q x 1`` tensor of outcomes for each member. As in
                BoTorch's fully Bayesian models, if the dimension before ``q`` has the size
                ``num_members``, it is interpreted as the dimension of members. If the last
                dimension of ``batch_shape`` has this size by chance, it would be mistaken for the
                dimension of members: split the batch, and condition on each part.
            noise: A tensor of known noise variances, with the shape of ``Y``.
            **kwargs: Further arguments of BoTorch's conditioning.

        Returns:
            A model whose data include the new points.
        """
        per_member = Y.dim() > 2 and Y.shape[MCMC_DIM] == self.batch_shape[-1]
        if not per_member:
            Y = _for_members(Y, self.batch_shape)
            noise = None if noise is None else _for_members(noise, self.batch_shape)
        if not (per_member and X.dim() == Y.dim()):
            X = _for_members(X, self.batch_shape)
        X = X.expand(*torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), *X.shape[-2:])
        return super().condition_on_observations(X, Y, noise=noise, **kwargs)  # type: ignore[return-value]


def _for_members(values: Tensor, members: torch.Size) -> Tensor:
    """Expands a ``batch_shape x q x c`` tensor to ``batch_shape x num_members x q x c``."""
    return values.unsqueeze(MCMC_DIM).expand(*values.shape[:-2], *members, *values.shape[-2:])


def _with_lower_bounds(draws: HyperparameterDraws) -> HyperparameterDraws:
    """Clips sampled hyperparameters at lower bounds, so that covariances can be factorized."""
    outputscale = draws.outputscale.clamp_min(10 * _TINY / _LEAST_DRAWN_NOISE)
    noise = torch.maximum(draws.noise, _LEAST_DRAWN_NOISE * outputscale)
    lengthscale = draws.lengthscale.clamp_min(1e-6)
    return HyperparameterDraws(draws.constant, lengthscale, outputscale, noise)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Computes the effective sample size ``(Σ w)² / Σ w²`` of samples with weights ``w``.

    Args:
        log_weights: An ``R`` tensor of logarithms of weights, up to an additive constant.

    Returns:
        A scalar tensor, from 1 to ``R``.

    Example:
        >>> effective_sample_size(torch.zeros(4))
        tensor(4.)
    """
    return 1 / log_weights.softmax(dim=0).square().sum()


def systematic_resample(log_weights: Tensor, num: int, seed: int) -> Tensor:
    """Chooses indices in proportion to their weights, by systematic resampling.

    Args:
        log_weights: An ``R`` tensor of logarithms of weights, up to an additive constant.
        num: The number of indices to choose.
        seed: The seed of the random offset.

    Returns:
        A ``num`` tensor of indices, ascending. An index with the normalized weight ``w`` occurs
        ``num * w`` times, rounded up or down.

    Example:
        >>> systematic_resample(torch.tensor([0.75, 0.25]).log(), num=4, seed=0)
        tensor([0, 0, 0, 1])
    """
    weights = log_weights.double().softmax(dim=0).cpu()
    offset = torch.rand(1, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    positions = (torch.arange(num, dtype=torch.double) + offset) / num
    chosen = torch.searchsorted(weights.cumsum(dim=0), positions)
    return chosen.clamp_max(len(weights) - 1).to(log_weights.device)
