"""HyperBO+: a GP averaged over its hyperparameters, with a pre-trained hyperprior.

Hyperparameters are drawn from the hyperprior, weighted by the likelihood of the target's data, and
resampled to an ensemble of GPs: one of BoTorch's ensembles, whose members acquisition functions
average over. Read it for the weighting and for the ensemble's posterior.

.. [Fan2022hyperboplus]
    Z. Fan, X. Han and Z. Wang. HyperBO+: Pre-training a universal prior for Bayesian optimization
    with hierarchical Gaussian processes. 2022. arXiv:2212.10538.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
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
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.models.hyperprior import (
    HyperpriorModel,
    HyperpriorOrData,
    hyperprior_kernel,
    hyperprior_mean,
    hyperprior_noise,
)
from botorch_transfer.models.inputs import check_target
from botorch_transfer.models.modular import resolve_prior
from botorch_transfer.pretraining.hyperprior.estimates import HyperparameterDraws
from botorch_transfer.pretraining.hyperprior.hyperprior import Hyperprior
from botorch_transfer.pretraining.hyperprior.validation import (
    effective_sample_size,
    log_likelihoods,
    systematic_resample,
)

MIN_EFFECTIVE_SAMPLES = 5.0
"""A smaller effective sample size is worth a warning."""

_LEAST_NOISE = 1e-8
"""The lowest noise variance of a draw, relative to its signal's."""

_TINY = 1e-18
"""The lowest variance of a draw; draws have no other bounds."""

_TOGETHER = 64
"""How many points share a covariance matrix that nobody asks for."""


def mixture_of_single_points(
    evaluate: Callable[[Tensor], Posterior], X: Tensor
) -> GaussianMixturePosterior | None:
    """Evaluates an ensemble at points one by one.

    As a batch, each point would have its own copy of every member's Cholesky factor: gigabytes for
    some hundred points and members. So they are evaluated jointly, a few at a time, and their
    covariances dropped.

    Args:
        evaluate: Evaluates the members' joint posterior at a ``q x d`` tensor of points, with
            moments ``num_members x q``.
        X: A ``batch_shape x 1 x d`` tensor of inputs.

    Returns:
        A mixture with moments ``batch_shape x num_members x 1 x 1``; ``None`` if ``X`` is of
        another shape, or the members' posteriors are not Gaussian.

    Example:
        >>> X = torch.rand(200, 1, 3)
        >>> def two_members(X):
        ...     covariance = torch.eye(len(X)).expand(2, -1, -1)
        ...     return GPyTorchPosterior(MultivariateNormal(torch.zeros(2, len(X)), covariance))
        >>> mixture_of_single_points(two_members, X).mean.shape
        torch.Size([200, 2, 1, 1])
    """
    if X.dim() < 3 or X.shape[-2] != 1 or X.numel() == 0:
        return None
    parts = []
    for points in X.reshape(-1, X.shape[-1]).split(_TOGETHER):
        posterior = evaluate(points)
        if not isinstance(posterior, GPyTorchPosterior):
            return None
        parts.append(posterior.distribution)
    shape = (*X.shape[:-2], len(parts[0].mean), 1)
    mean = torch.cat([part.mean for part in parts], dim=-1).mT.reshape(shape)
    variance = torch.cat([part.variance for part in parts], dim=-1).mT.reshape(shape)
    return GaussianMixturePosterior(MultivariateNormal(mean, variance.unsqueeze(-1)))


class FullyBayesianHyperpriorGP(HyperpriorModel):
    r"""A GP averaged over what its hyperparameters may be, given a pre-trained hyperprior.

    Hyperparameters are drawn from the hyperprior and weighted by the likelihood of the target's
    data under them (Eq. 5 of [Fan2022hyperboplus]_). An ensemble of equally weighted members is
    resampled from these draws, in proportion to their weights: BoTorch's acquisition functions
    average over it, and ``posterior`` is a ``GaussianMixturePosterior``. There is nothing to fit:
    ``fit_gpytorch_mll`` returns at once. Use it with few target points, where one best guess of
    the hyperparameters would be too sure of itself; :class:`HyperpriorGP` is the cheaper one.

    It is one of BoTorch's ensembles, with their smaller contract: analytic and Monte Carlo
    acquisition functions, conditioning and ``loo_cv``, but no entropy search, no knowledge gradient
    and no batches of targets.

    Args:
        train_X: An ``n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: An ``n x 1`` tensor of target outcomes, to be maximized.
        prior: The :class:`Hyperprior`, or what to learn it from: a sequence of :class:`Domain`; or
            source tasks, which then are the only domain. The same data are pre-trained once.
        train_Yvar: An ``n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: Must be omitted, as the noise is drawn from the hyperprior.
        covar_module: Must be omitted, as the kernel is drawn from the hyperprior.
        outcome_transform: By default the standardization by the target's outcomes, and by what is
            typical of source tasks where there are fewer than two; none if the hyperprior speaks in
            raw units. ``None`` if the outcomes are in the hyperprior's units already.
        input_transform: A frozen transform of the inputs to the unit cube, for instance
            ``Normalize(d, bounds=...)``; by default the one that all source domains share, if it
            is of as many inputs.
        context: A ``d x s`` tensor that describes the inputs as those of the source domains were
            described; by default ``default_context(d)``: continuous inputs.
        num_samples: The number of draws, 4,096 or more. The paper's 100 collapse onto a few draws
            once there are a dozen points; see ``effective_sample_size``.
        num_members: The number of members of the ensemble.
        seed: The seed of the draws.

    Raises:
        ValueError: If there is a likelihood or kernel, a number is not positive, or the input
            transform is not frozen.

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

    _is_ensemble = True

    prior: Hyperprior
    mean_module: ConstantMean
    covar_module: ScaleKernel
    effective_sample_size: Tensor
    """How many equally weighted draws the weighted ones are worth, a scalar tensor."""

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
        check_target(train_X, train_Y, train_Yvar, None, task_feature)
        _check_options(train_X, likelihood, covar_module, num_samples, num_members)
        hyperprior = resolve_prior(Hyperprior, prior, input_transform)
        dim = train_X.shape[-1] - (task_feature is not None)
        # In the hyperprior's own precision, so that the draws do not depend on the data's.
        draws = hyperprior.sample(num_samples, dim, context, seed).to(train_X)
        hyperprior = hyperprior.to(train_X)
        members = torch.Size([num_members])
        if isinstance(outcome_transform, DefaultType):
            outcome_transform = hyperprior.default_outcome_transform(torch.Size())
        Y, Yvar = train_Y, train_Yvar
        if outcome_transform is not None:
            transform = hyperprior.input_transform_for(dim, input_transform)
            outcome_transform = outcome_transform.to(train_X).train()
            X = train_X if transform is None or task_feature is not None else transform(train_X)
            Y, Yvar = outcome_transform(train_Y, train_Yvar, X=X)
        super().__init__(
            train_X.expand(*members, *train_X.shape),
            Y.expand(*members, *Y.shape),
            prior=hyperprior,
            mean_module=hyperprior_mean(hyperprior, members),
            covar_module=hyperprior_kernel(hyperprior, dim, context, members, bounded=False),
            train_Yvar=None if Yvar is None else Yvar.expand(*members, *Yvar.shape),
            # Known already: the transform is that of one target, not of a hundred members.
            outcome_transform=None,
            input_transform=input_transform,
            task_feature=task_feature,
            noise=replace(hyperprior_noise(hyperprior), lower=_TINY, upper=1 / _TINY),
        )
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        self._choose_members(draws, train_X, seed)
        self.requires_grad_(False)
        self.to(train_X)

    @torch.no_grad()
    def _choose_members(self, draws: HyperparameterDraws, train_X: Tensor, seed: int) -> None:
        """Weighs the draws by the target's data, and resamples the members from them."""
        X = self.transform_inputs(train_X)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = self.likelihood.noise[0] if known and self.num_target_points > 0 else None
        draws = _with_lower_bounds(draws)
        weights = log_likelihoods(draws, X, self.train_targets[0], noise, self.prior.kernel)
        # Where no draw can explain the data at all, all of them are as good, and worth nothing.
        effective = effective_sample_size(weights).nan_to_num(nan=0.0).to(train_X)
        if not bool(weights.isfinite().any()):
            weights = torch.zeros_like(weights)
        self.register_buffer("effective_sample_size", effective)
        if float(effective) < min(MIN_EFFECTIVE_SAMPLES, 0.5 * len(draws)):
            warnings.warn(
                f"The ensemble is worth only {float(effective):.1f} draws of {len(draws):,}: the "
                "target's data are unlike what the hyperprior expects. Raise num_samples, or use "
                "HyperpriorGP.",
                RuntimeWarning,
                stacklevel=3,
            )
        chosen = draws[systematic_resample(weights, self.batch_shape[0], seed)]
        self.mean_module.constant = chosen.constant
        self.covar_module.outputscale = chosen.outputscale
        self.covar_module.base_kernel.lengthscale = chosen.lengthscale.unsqueeze(-2)
        if not known:
            self.likelihood.noise = chosen.noise.unsqueeze(-1)

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GaussianMixturePosterior | GPyTorchPosterior | TransformedPosterior:
        """Evaluates the posterior of every member.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            output_indices: Must be omitted or ``[0]``.
            observation_noise: Whether to add the members' noise; or a ``batch_shape x q x 1``
                tensor of noise variances, in the model's own units; with a dimension of members
                before ``q``, each member's own.
            posterior_transform: A transform of the posterior.
            **kwargs: Ignored.

        Returns:
            A mixture of Gaussians with moments ``batch_shape x num_members x q x 1``.
        """
        plain = posterior_transform is None and output_indices is None and not kwargs
        if plain and observation_noise is False and len(self.batch_shape) == 1:
            mixture = mixture_of_single_points(super().posterior, X)
            if mixture is not None:
                return mixture
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

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, hyperparameters as they are.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A mixture of shape ``n x num_members x 1 x 1`` in the user's units, one batch a point.
        """
        return ensemble_loo_cv(self, observation_noise=observation_noise).posterior

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """Conditions every member on further points; members and their weights stay as they are.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs, the same for all members; or one with a
                dimension of members, if ``Y`` has one.
            Y: A ``batch_shape x q x 1`` tensor of outcomes; or a ``batch_shape x num_members x q x
                1`` tensor of each member's own. As in BoTorch's fully Bayesian models, a dimension
                of the members' size before ``q`` is taken for theirs: condition on a batch of
                just this size in two parts.
            noise: A tensor of known noise variances like ``Y``.
            **kwargs: Further arguments of BoTorch's conditioning.

        Returns:
            A model with these points among its data.
        """
        per_member = Y.dim() > 2 and Y.shape[MCMC_DIM] == self.batch_shape[-1]
        if not per_member:
            Y = _for_members(Y, self.batch_shape)
            noise = None if noise is None else _for_members(noise, self.batch_shape)
        if not (per_member and X.dim() == Y.dim()):
            X = _for_members(X, self.batch_shape)
        X = X.expand(*torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), *X.shape[-2:])
        conditioned: Any = super().condition_on_observations(X, Y, noise=noise, **kwargs)
        return conditioned


def _for_members(values: Tensor, members: torch.Size) -> Tensor:
    """Repeats ``batch_shape x q x c`` values for each member, next to the last two dimensions."""
    return values.unsqueeze(MCMC_DIM).expand(*values.shape[:-2], *members, *values.shape[-2:])


def _with_lower_bounds(draws: HyperparameterDraws) -> HyperparameterDraws:
    """Raises noise variances so small that no covariance matrix could be factorized."""
    outputscale = draws.outputscale.clamp_min(10 * _TINY / _LEAST_NOISE)
    return HyperparameterDraws(
        constant=draws.constant,
        lengthscale=draws.lengthscale.clamp_min(1e-6),
        outputscale=outputscale,
        noise=torch.maximum(draws.noise, _LEAST_NOISE * outputscale),
    )


def _check_options(
    train_X: Tensor,
    likelihood: Likelihood | None,
    covar_module: Kernel | None,
    num_samples: int,
    num_members: int,
) -> None:
    if train_X.dim() != 2:
        raise InputDataError(
            f"train_X has shape {tuple(train_X.shape)}: an ensemble has no batches of targets, so "
            "it must be n x d."
        )
    for name, part in (("likelihood", likelihood), ("covar_module", covar_module)):
        if part is not None:
            raise ValueError(
                f"The members' {name} comes from the hyperprior: leave it out, or use "
                "HyperpriorGP, which takes one."
            )
    if num_samples < 1 or num_members < 1:
        raise ValueError("num_samples and num_members must be positive.")
