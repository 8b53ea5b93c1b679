r"""PopulationGP: the target as a new task of a hierarchical GP over the source tasks.

The source tasks determine the common function, and the typical difference between a task and the
common function, see ``population.prior``. Only the scale (a factor) and the level (a constant) of a
new task are unknown. The model averages over scales and levels, and fits nothing to the target, so
it cannot overfit. The posterior mean of the common function, times the expected scale, is the prior
mean of the target. The target's kernel includes the uncertainty of scale and level.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from botorch.sampling.pathwise.paths import PathDict
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from gpytorch.module import Module
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer._botorch import draw_kernel_feature_paths_fallback
from botorch_transfer.gp.combine import SourceMean, WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.expansion import Expansion, Part, PriorKernel, evaluate
from botorch_transfer.gp.hyperpriors import (
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
    Hyperparameter,
)
from botorch_transfer.gp.likelihood import added_variance, cholesky_or_nan, log_density
from botorch_transfer.gp.paths import MeanPath, ScaledPath
from botorch_transfer.gp.state import collapse_batch, select_batch
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.population.prior import (
    ConditionedPopulation,
    SourcePopulation,
    centred_between,
)
from botorch_transfer.prior import ConditionedPrior


class TargetScale(Module):
    r"""Moments of the target's random scale ``b`` and random level.

    The target's function is a constant level plus ``b`` times a function that resembles the source
    tasks. The moments are computed, not fitted. A PyTorch parameter without gradient stores the
    moments, so that copies of the hyperparameters include the moments.

    Args:
        batch_shape: The batch shape of the target model.

    Example:
        >>> TargetScale().mean
        tensor(1.)
    """

    moments: Parameter

    def __init__(self, batch_shape: torch.Size = torch.Size()) -> None:  # noqa: B008
        super().__init__()
        start = torch.tensor([1.0, 0.0, 1.0, 1.0]).expand(*batch_shape, 4).clone()
        self.register_parameter("moments", Parameter(start, requires_grad=False))

    @property
    def mean(self) -> Tensor:
        """The mean of the scale ``b``, a ``batch_shape`` tensor."""
        return self.moments[..., 0]

    @property
    def variance(self) -> Tensor:
        """The variance of the scale ``b``, a ``batch_shape`` tensor."""
        return self.moments[..., 1]

    @property
    def mean_square(self) -> Tensor:
        """The mean of the squared scale ``b²``, a ``batch_shape`` tensor."""
        return self.moments[..., 2]

    @property
    def level_variance(self) -> Tensor:
        """The variance of the target's level, a ``batch_shape`` tensor."""
        return self.moments[..., 3]

    def set(self, *moments: Tensor) -> None:
        """Sets the moments of the scale (mean, variance, mean square) and the level's variance."""
        self.moments.data = torch.stack(torch.broadcast_tensors(*moments), dim=-1).to(self.moments)

    __getitem__ = select_batch


class PopulationMean(SourceMean):
    """Prior mean ``E[b] μ(x)`` of the target. The target's level has mean zero.

    Args:
        common: The posterior mean ``μ`` of the function that all source tasks share.
        scale: The moments of the target's scale ``b``.
    """

    def __init__(self, common: WeightedSumMean, scale: TargetScale) -> None:
        super().__init__()
        self.common, self.scale = common, scale

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        return self.scale.mean.unsqueeze(-1) * self.common(x)

    def parts(self, x: Tensor) -> Tensor:
        """Evaluates each source task's contribution to the mean at ``n`` inputs, ``M x n``."""
        gps = cast(ConditionedPopulation, self.common.gps)
        return self.scale.mean * gps.parts @ gps.flat_cross(x.double())[0].mT


class PopulationKernel(PriorKernel):
    r"""Prior kernel of the target, whose scale ``b`` and level ``a`` are uncertain.

    The target's function is ``a + b (c(x) + h(x))`` with independent ``a``, ``b``, ``c`` and ``h``.
    The common function ``c`` has the posterior mean ``μ`` and covariance ``Σ``. The target's own
    function ``h`` has mean zero and the covariance ``k``. The kernel is

    .. code-block:: text

        E[b²] (Σ(x, x') + k(x, x')) + Var[b] μ(x) μ(x') + Var[a]

    Args:
        residual: The kernel of a random function ``g``. The target's own function ``h`` is ``g``
            minus the mean of ``g`` over the reference points (some of the source inputs).
        common: Mean module that evaluates ``μ``. Its attribute ``gps`` evaluates both ``μ`` and
            ``Σ``.
        scale: The moments of scale and level.
    """

    def __init__(self, residual: Kernel, common: WeightedSumMean, scale: TargetScale) -> None:
        super().__init__(batch_shape=scale.moments.shape[:-1])
        self.residual, self.common, self.scale = residual, common, scale
        self.common_covariance = WeightedSumKernel(common.gps)

    def __getitem__(self, index: Any) -> PopulationKernel:
        """Returns the kernel for the target models that ``index`` selects from a batch."""
        if not len(self.batch_shape):
            return self
        return PopulationKernel(self.residual[index], self.common, self.scale[index])

    def unscaled(self, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
        """Evaluates the covariance of the target's function for scale one and level zero.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return the values at ``(x1_i, x2_i)`` only.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        reference = cast(ConditionedPopulation, self.common.gps).reference.to(x1)
        own = centred_between(partial(evaluate, self.residual), x1, x2, reference, diag)
        return own + self.common_covariance.forward(x1, x2, diag=diag)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        batch_shape = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        # Inputs that are equal along a batch are evaluated only once.
        same = x1 is x2
        x2 = collapse_batch(x2)
        x1 = x2 if same else x1
        mean1 = self.common(x1)
        mean2 = mean1 if same else self.common(x2)
        products = mean1 * mean2 if diag else mean1.unsqueeze(-1) * mean2.unsqueeze(-2)
        of_scale = self.scale.mean_square, self.scale.variance, self.scale.level_variance
        square, variance, level = (part[(..., *[None] * (2 - diag))] for part in of_scale)
        values = square * self.unscaled(x1, x2, diag) + variance * products + level
        return values.expand(*batch_shape, *values.shape[-1:] if diag else values.shape[-2:])

    def draw(
        self, sample_shape: torch.Size, batch_shape: torch.Size, num_features: int, **kwargs: Any
    ) -> PathDict:
        """Draws functions with mean zero and this kernel, see :meth:`.PriorKernel.draw`."""
        scale, gps = self.scale, cast(ConditionedPopulation, self.common.gps)
        factor, variances = scale.mean_square.sqrt(), (scale.variance, scale.level_variance)
        z = factor.new_empty(2, *sample_shape, *self.batch_shape).normal_()
        # The random deviations of scale and level: two normal numbers for each function.
        slope, level = (number * v.sqrt() for number, v in zip(z, variances, strict=True))
        kwargs |= {"sample_shape": sample_shape, "num_features": num_features}
        own = draw_kernel_feature_paths_fallback(
            num_inputs=gps.dim, mean_module=None, covar_module=self.residual, **kwargs
        )
        own_mean = own(gps.reference.to(factor)).mean(dim=-1)
        common = self.common_covariance.draw(sample_shape, batch_shape, num_features)
        paths = {
            "mean": ScaledPath(MeanPath(self.common), slope, level),
            "residual": ScaledPath(own, factor, -factor * own_mean),
            "sources": ScaledPath(common, factor),
        }
        return PathDict(paths, sum)  # type: ignore[arg-type]

    def expand(self, mean: Mean, rest: Expansion, T: Tensor) -> Expansion | None:
        """Writes the target's prior as a sum of kernel values, see :meth:`.PriorKernel.expand`."""
        residual, gps = Stationary.of(self.residual), cast(ConditionedPopulation, self.common.gps)
        is_ours = isinstance(mean, PopulationMean) and mean.common is self.common
        if residual is None or rest.parts or not is_ours:
            return None
        scale = self.scale
        mean_square = scale.mean_square.double()
        common = Part.of_sources(
            gps, scale.mean.double().reshape(1), T, squares=mean_square.reshape(1)
        )
        reference = gps.reference.to(T)
        share = 1 / len(reference)
        own = Part.of_kernel(residual, T, reference)
        of_mean = residual.between(T, reference).mean(dim=-1)
        variance = residual.between(reference, reference).mean()
        columns, level = mean_square * own.columns, scale.level_variance
        columns[:, len(T) :, 1] = -2 * share * mean_square
        columns[:, len(T) :, 2:] = -share * mean_square
        own = replace(own, columns=columns, factor=mean_square.reshape(1))
        total = mean_square * (gps.outputscale[0] + residual.scale + variance) + level
        cross = mean_square * (variance - of_mean) + level
        constants = torch.cat([torch.stack([gps.prior_mean[0], total]), cross])
        return Expansion([common, own], constants)


# ---------------------------------------------------------------------------------------- the model

#: Number of positive scales to average over, and the maximum distance of a scale's logarithm from
#: its mean, in standard deviations.
NUM_SCALES, WIDTH = 9, 2.5

#: Prior probability that the target's scale is negative: the target is good where sources are bad.
INVERTED = 0.05

#: Prior probability that the target's level is unrelated to the sources' levels, and the factor
#: that multiplies the level's standard deviation in this case.
ELSEWHERE, FAR = 0.05, 10.0

#: Minimum number of target points from which the spread of the target's outcomes is estimated.
ENOUGH_POINTS = 3

#: The bounds of the noise variance lie below and above its starting value by this factor or more.
_RANGE = 1e12


class PopulationGP(SourcePosteriorGP):
    r"""The target as a new task of a hierarchical GP with hyperparameters fitted to the sources.

    The target is ``a + b (c(x) + h(x))``. The common function is ``c ~ GP(μ, Σ)``, given all source
    tasks. The target's own function is ``h ~ GP(0, k)``. Each draw of ``h`` averages to zero over
    the reference points (some of the source inputs). Level ``a`` and scale ``b`` have the
    distribution of the sources' levels and scales, except for two cases of small probability: ``b``
    may be negative (the target is good where the sources are bad), and ``a`` may be far from the
    sources' levels. The posterior of the scale is discrete, with nine positive and nine negative
    values. One exact GP with the following mean and covariance approximates the target:

    .. code-block:: text

        m_t(x) = E[b] μ(x)
        k_t(x, x') = E[b²] (Σ(x, x') + k(x, x')) + Var[b] μ(x) μ(x') + Var[a]

    The constructor and ``fit_gpytorch_mll`` compute the moments of ``a`` and ``b`` from the
    target's data; conditioning and fantasies keep the moments. Use the model for the first
    evaluations, even with few and small source tasks, and whenever you do not trust a fit to a
    handful of points. Outcomes of the target and of the sources should have the same units, up to a
    small factor. If there are at least three target outcomes, and their standard deviation is far
    larger than the sources' standard deviations, the model rescales the target outcomes.

    Args:
        prior: A :class:`SourcePopulation`, or source data to which such a prior is fitted.
        covar_module: The kernel of a random function ``g``, in units of a task's standardized
            outcomes. The target's own function ``h`` is ``g`` minus the mean of ``g`` over the
            reference points, and ``k`` is the covariance of ``h``. The default is the kernel of the
            source tasks' own functions, with fixed hyperparameters. If you give a kernel, its
            parameters are fitted to the target.
        outcome_transform: The transform of ``train_Y`` to the prior's units; by default a
            standardization by the mean of the source tasks' levels and the geometric mean of their
            scales. ``None`` if ``train_Y`` already has the prior's units. ``Log``, ``Bilog`` and
            ``Power`` are also applied to the source outcomes. In a ``ChainedOutcomeTransform``,
            they must precede all other transforms.

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
        """Returns hyperparameters whose noise variance starts at the source tasks' value."""
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

        The target's noise variance is the product of the source tasks' noise variance and the
        squared scale. The product is clipped to the bounds of the likelihood's noise variance.
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
        """Returns, for each target, the factor that multiplies the target's scale and level.

        The factor is 1 if there are fewer than three outcomes, or if their standard deviation is at
        most the largest scale that the model considers. A larger standard deviation suggests that
        the target has other units than the sources. The factor is then the ratio of the standard
        deviation to this largest scale.
        """
        Y, steps = self.train_targets.double(), self.prior.scale_log_std * WIDTH
        if self.num_target_points < ENOUGH_POINTS:
            return Y.new_ones(Y.shape[:-1])
        return (Y.std(dim=-1) / math.exp(steps)).clamp_min(1.0)

    def _evidence(self, scales: Tensor, levels: Tensor, unit: Tensor) -> Tensor:
        """Evaluates the target's log density for each pair of a scale and a variance of the level.

        Args:
            scales: An ``S`` tensor of scales.
            levels: An ``L`` tensor of variances of the level.
            unit: The factor from :meth:`_unit`, which multiplies scales and levels, a
                ``batch_shape`` tensor.

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
