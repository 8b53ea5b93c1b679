r"""PopulationGP: the target as a new task of a hierarchical GP over the source tasks.

The source tasks determine the common function, and the typical difference between a task and the
common function. Only the scale (a factor) and the level (a constant) of a new task are unknown. The
model averages over scales and levels, and fits nothing to the target, so it cannot overfit. The
posterior of the common function is in ``population.kernel``, and the fit to the source tasks in
``population.prior``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.gp.combine import WeightedSumMean
from botorch_transfer.gp.hyperpriors import (
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
    Hyperparameter,
)
from botorch_transfer.gp.likelihood import cholesky_or_nan, log_density
from botorch_transfer.gp.noise import added_variance
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.population.kernel import PopulationKernel, PopulationMean, TargetScale
from botorch_transfer.population.prior import SourcePopulation
from botorch_transfer.prior import ConditionedPrior

#: Number of positive scales to average over, and the maximum distance of a log scale from the mean
#: log scale, in standard deviations.
NUM_SCALES, WIDTH = 9, 2.5

#: Prior probability that the target's scale is negative: the target is good where sources are bad.
INVERTED = 0.05

#: Prior probability that the target's level is unrelated to the sources' levels, and the factor
#: that multiplies the level's standard deviation in this case.
ELSEWHERE, FAR = 0.05, 10.0

#: Minimum number of target points from which the spread of the target's outcomes is estimated.
ENOUGH_POINTS = 3

#: Factor between the noise variance and its bounds.
_RANGE = 1e12


class PopulationGP(SourcePosteriorGP):
    r"""The target as a new task of a hierarchical GP over the sources, without a fit to the target.

    The target is ``a + b (c(x) + h(x))``, with the common function ``c ~ GP(μ, Σ)`` given all
    source tasks, and the target's own function ``h ~ GP(0, k)``, whose mean over reference points
    is zero. Level ``a`` and scale ``b`` have the distribution of the sources' levels and scales,
    with two exceptions of small probability: the target may be good where the sources are bad,
    ``b < 0``, or the target's level may be far from the sources' levels. The posterior of the scale
    is discrete, with nine positive and nine negative values. One exact GP with the following mean
    and covariance approximates the target:

    .. code-block:: text

        m_t(x) = E[b] μ(x)
        k_t(x, x') = E[b²] (Σ(x, x') + k(x, x')) + Var[b] μ(x) μ(x') + Var[a]

    The constructor and each fit compute the moments; conditioning and fantasies keep the moments.
    All hyperparameters are fitted to the sources. Use the model for the first evaluations, even
    with few and small source tasks, and whenever you do not trust a fit to a handful of points.
    Outcomes of the target and of the sources should have the same units, up to a small factor. If
    three or more target outcomes vary far more than the sources' outcomes, the model rescales the
    target outcomes.

    Args:
        prior: A :class:`SourcePopulation`, or source data to fit a :class:`SourcePopulation` to.
        covar_module: The kernel ``k`` of the target's own function, in units of a standardized
            task. The default is the kernel of the source tasks' own functions, with fixed
            hyperparameters. If you give a kernel, its parameters are fitted to the target.

    Raises:
        ValueError: If the input transform is not frozen, or differs from the prior's transform.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = PopulationGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.posterior(X).mean.shape
        torch.Size([30, 1])
    """

    prior_class = SourcePopulation
    prior: SourcePopulation
    covar_module: PopulationKernel

    def _own_hyperparameters(self, prior: ConditionedPrior) -> GPHyperparameters:
        """Returns hyperparameters with the source tasks' noise variance as starting value."""
        noise = float(cast(SourcePopulation, prior).hyperparameters.noise)
        bounds = min(1.0, noise) / _RANGE, max(1.0, noise) * _RANGE
        return replace(SOURCE_HYPERPARAMETERS, noise=Hyperparameter(None, noise, *bounds))

    def _residual(
        self, prior: ConditionedPrior, own: GPHyperparameters, batch_shape: torch.Size
    ) -> ScaleKernel:
        """Returns the kernel of a task's own function, with the source tasks' hyperparameters."""
        learned = cast(SourcePopulation, prior).hyperparameters
        lengthscale = learned.own_lengthscale.expand(*batch_shape, 1, -1)
        scale = learned.own_outputscale.expand(batch_shape)
        return Stationary(prior.gps.kernel, lengthscale, scale).make_kernel()

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        scale, common = TargetScale(batch_shape), WeightedSumMean(prior.gps)
        return PopulationMean(common, scale), PopulationKernel(residual, common, scale)

    def _add_parts(self) -> None:
        if self._infers_noise:
            self.likelihood.requires_grad_(False)
        self.update_scale()

    def _derived_noise(self, squares: Tensor) -> Tensor:
        """Returns the target's noise variance for each of the squared scales ``squares``.

        The target's noise variance is the source tasks' noise variance times the squared scale,
        clipped to the bounds of the likelihood's noise variance.
        """
        bounds: Any = cast(Any, self.likelihood).noise_covar.raw_noise_constraint
        noise = (squares * self.prior.gps.own_noise).unsqueeze(-1)
        return noise.clamp(1.01 * float(bounds.lower_bound), 0.99 * float(bounds.upper_bound))

    @property
    def scale(self) -> TargetScale:
        """Posterior moments of the target's scale (a factor) and level (a constant)."""
        return self.covar_module.scale

    @torch.no_grad()
    def update_scale(self) -> None:
        """Recomputes the moments of the target's scale and level from the target's data.

        The constructor and each fit call this method. Call this method yourself after you change
        hyperparameters.
        """
        steps = torch.linspace(-WIDTH, WIDTH, NUM_SCALES, dtype=torch.double)
        steps = steps.to(self.train_targets.device)
        positive, unit = (self.prior.scale_log_std * steps).exp(), self._unit()
        scales, usual = torch.cat([positive, -positive]), self.prior.level_variance
        levels = steps.new_tensor([usual, FAR**2 * max(usual, 1.0)])
        log_odds = torch.tensor([[1 - INVERTED, INVERTED], [1 - ELSEWHERE, ELSEWHERE]]).log()
        of_scales = log_odds[0].to(steps).unsqueeze(-1) - 0.5 * steps.square()
        log_weights = log_odds[1].to(steps).unsqueeze(-1) + of_scales.flatten()
        if self.num_target_points > 0:
            log_weights = log_weights + self._evidence(scales, levels, unit)
        joint = log_weights.flatten(-2).softmax(dim=-1).unflatten(-1, log_weights.shape[-2:])
        weights, elsewhere = joint.sum(dim=-2), joint[..., 1, :].sum(dim=-1) > 0.5
        mean, square = unit * (weights @ scales), unit.square() * (weights @ scales.square())
        # Uses the likelier of the two level variances. In their mean, the larger variance would
        # dominate.
        level = unit.square() * torch.where(elsewhere, levels[1], levels[0])
        # Rounding can make the variance slightly negative.
        self.scale.set(mean, (square - mean.square()).clamp_min(0.0), square, level)
        if self._infers_noise:
            noise = self._derived_noise(square).to(self.train_targets)
            cast(Any, self.likelihood).noise_covar.derive(noise)
        cast(Any, self)._clear_cache()  # cached predictions use the old moments

    def _unit(self) -> Tensor:
        """Returns a factor of the target's scale and level, a ``batch_shape`` tensor.

        The factor is usually one. If the standard deviation of three or more outcomes exceeds the
        largest scale, the target has different units than the sources. The factor is then the
        standard deviation divided by the largest scale.
        """
        Y, steps = self.train_targets.double(), self.prior.scale_log_std * WIDTH
        if self.num_target_points < ENOUGH_POINTS:
            return Y.new_ones(Y.shape[:-1])
        return (Y.std(dim=-1) / math.exp(steps)).clamp_min(1.0)

    def _evidence(self, scales: Tensor, levels: Tensor, unit: Tensor) -> Tensor:
        """Evaluates the log density of the target's outcomes for each scale and level variance.

        Args:
            scales: An ``S`` tensor of scales.
            levels: An ``L`` tensor of level variances.
            unit: The factor of scales and levels, a ``batch_shape`` tensor.

        Returns:
            A ``batch_shape x L x S`` tensor. If a covariance matrix is not positive definite, the
            log density is the lowest finite number.
        """
        (X,), Y = self.train_inputs, self.train_targets.double().unsqueeze(-2)
        X = self.transform_inputs(X) if self.training else X  # already transformed in eval mode
        mean = self.mean_module.common(X).double().unsqueeze(-2)
        scales, squares = unit.unsqueeze(-1) * scales, (unit.unsqueeze(-1) * scales).square()
        if self._infers_noise and not cast(Any, self.likelihood).noise_covar.is_set:
            noise = self._derived_noise(squares) + added_variance(self.likelihood)
        else:
            noise = self._noise_variance().double().unsqueeze(-2)
        covariance = self.covar_module.unscaled(X, X).double().unsqueeze(-3)
        covariance = squares[..., None, None] * covariance
        covariance = covariance + noise.expand(*squares.shape, Y.shape[-1]).diag_embed()
        added = unit.square().unsqueeze(-1) * levels
        root = cholesky_or_nan(covariance.unsqueeze(-4) + added[..., None, None, None])
        residual = (Y - scales.unsqueeze(-1) * mean).unsqueeze(-1).unsqueeze(-4)
        residual = residual.expand(*root.shape[:-1], 1)
        value = log_density(root, torch.linalg.solve_triangular(root, residual, upper=False))
        return value.nan_to_num(nan=torch.finfo(value.dtype).min)

    def _after_fit(self) -> None:
        self.update_scale()
