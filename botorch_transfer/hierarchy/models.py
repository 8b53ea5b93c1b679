r"""Hierarchical models: the target is the last source task plus a difference.

The models are SHGP, MHGP (also known as StackGP) and BHGP of [Tighineanu2022hierarchical]_. In all
three models, each source task is one *level*: the first task is the lowest level, and the target
follows the last level. Each level is modelled as the level below plus a difference, which is a GP.
The models differ in the part of a level's posterior that is passed on to the next level, and in the
target's prior covariance:

============ =========== =====================================================================
model        passed on   the target's covariance
============ =========== =====================================================================
SHGP         mean and    residual kernel plus the covariance of the last source task
             covariance
MHGP         mean        residual kernel
BHGP         mean        residual kernel plus the uncertainty of the means of the levels below
============ =========== =====================================================================

By default, each source task is standardized by its own outcomes, and kernels are RBF with a
lengthscale for each input. The hyperpriors come from ScaML-GP, because maximum likelihood, which
the paper uses, overfits few points.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.
.. [Golovin2017vizier]
    D. Golovin et al. Google Vizier: A Service for Black-Box Optimization. KDD 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.sampling.pathwise.paths import SamplePath
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from linear_operator import to_linear_operator
from linear_operator.operators import MatmulLinearOperator
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData
from botorch_transfer.gp.combine import WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.expansion import evaluate
from botorch_transfer.gp.hyperpriors import HyperparameterChoice
from botorch_transfer.gp.strategy import evaluated
from botorch_transfer.hierarchy.prior import BoostedHierarchy, Propagate, SourceHierarchy
from botorch_transfer.modular import SourcePosteriorGP, resolve_prior
from botorch_transfer.prior import ConditionedPrior


class HierarchicalGP(SourcePosteriorGP):
    """Base class of the hierarchical models, with their prior, mean and residual kernel.

    Args:
        prior: A :class:`SourceHierarchy`, or source data from which a hierarchy is fitted. In this
            hierarchy, each source task builds on the previous task.
        covar_module: The residual kernel: the kernel of the target's difference from the last
            source task.

    Raises:
        ValueError: If ``propagate`` of the prior is not the value that this model needs, or if the
            input transform does not match the prior's transform.
    """

    prior_class = SourceHierarchy
    #: The part of a task's posterior that the next task uses: ``"covariance"`` or ``"mean"``.
    propagate: Propagate

    prior: SourceHierarchy

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        hyperparameters: HyperparameterChoice = "cautious",
    ) -> None:
        self._hyperparameters, needed = hyperparameters, self.propagate
        stack = resolve_prior(
            SourceHierarchy, prior, input_transform, outcome_transform, propagate=needed
        )
        if stack.propagate != needed:
            raise ValueError(
                f"{type(self).__name__} needs propagate={needed!r}, but the SourceHierarchy has "
                f"{stack.propagate!r}: fit a hierarchy with propagate={needed!r}."
            )
        modules = (likelihood, covar_module, outcome_transform, input_transform)
        super().__init__(train_X, train_Y, stack, train_Yvar, *modules, task_feature)

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        return WeightedSumMean(prior.gps), residual


class SequentialHierarchicalGP(HierarchicalGP):
    r"""SHGP [Tighineanu2022hierarchical]_: each task uses the previous task's mean and covariance.

    Source task ``n`` is task ``n - 1`` plus a difference. Each difference is a GP, and the GPs are
    fitted one after another. If the last source task has the posterior mean ``μ`` and covariance
    ``Σ``, the target's prior is

    .. code-block:: text

        m_t(x) = μ(x)        k(x, x') = k_t(x, x') + Σ(x, x')

    With the same hyperparameters, SHGP has the same posterior as the joint hierarchical GP, HGP
    (Corollary 1). Only the fits differ: HGP fits all tasks together. Use SHGP for ordered tasks,
    or for a few similar tasks.

    Args:
        prior: A :class:`SourceHierarchy` with ``propagate="covariance"``, or source data from which
            such a hierarchy is fitted. In the hierarchy, each source task builds on the previous
            task. Fits are cached: equal data are not refitted.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a lengthscale
            for each input.

    Raises:
        ValueError: If ``propagate`` of the hierarchy is not ``"covariance"``, or if the input
            transform does not match the prior's transform.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = SequentialHierarchicalGP(X[:3], X[:3, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    propagate = "covariance"

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        # The operator `+` would flatten a residual kernel that is itself a sum.
        kernel = AdditiveKernel(residual, WeightedSumKernel(prior.gps))
        return WeightedSumMean(prior.gps), kernel


class MeanHierarchicalGP(HierarchicalGP):
    r"""MHGP [Tighineanu2022hierarchical]_: each task uses only the previous task's mean.

    The target is a GP whose prior mean is the last source task's posterior mean, which is a sum
    over the source tasks. MHGP ignores the uncertainty of this mean, and is the simplest and
    cheapest of the hierarchical models. Far from target data, the predicted standard deviation is
    the standard deviation of the residual GP, even if the sources are uncertain. Use MHGP for many
    and dense source data; otherwise prefer :class:`SequentialHierarchicalGP` or
    :class:`BoostedHierarchicalGP`.

    With ``deviation_weight``, the standard deviation ``σ_n`` of task ``n`` combines the standard
    deviations of the task's residual and of the previous task, as in [Golovin2017vizier]_:
    ``σ_n = σ_residual^β σ_{n-1}^{1-β}``, ``β = a N_n / (a N_n + N_{n-1})``, where task ``n`` has
    ``N_n`` points. The target is the last task. Correlations between predictions are the
    correlations of the residual GP.

    Args:
        prior: A :class:`SourceHierarchy` with ``propagate="mean"``, or source data from which such
            a hierarchy is fitted. In the hierarchy, each source task builds on the previous task.
            Fits are cached: equal data are not refitted.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a lengthscale
            for each input.
        deviation_weight: The positive factor ``a`` in ``β``. By default, predictions have the
            standard deviation of the residual GP.

    Raises:
        ValueError: If ``propagate`` of the hierarchy is not ``"mean"``, if the input transform
            does not match the prior's transform, or if ``deviation_weight`` is not positive.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = MeanHierarchicalGP(X[:3], X[:3, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    propagate = "mean"

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        deviation_weight: float | None = None,
        hyperparameters: HyperparameterChoice = "cautious",
    ) -> None:
        if deviation_weight is not None and not deviation_weight > 0:
            raise ValueError(f"deviation_weight={deviation_weight} must be positive.")
        modules = (likelihood, covar_module, outcome_transform, input_transform)
        options = (task_feature, hyperparameters)
        super().__init__(train_X, train_Y, prior, train_Yvar, *modules, *options)
        self.deviation_weight = deviation_weight

    def _predict(self, X: Tensor) -> MultivariateNormal:
        mvn = self.exact_gp(X)
        if self.deviation_weight is None:
            return mvn
        sizes = [*self.prior.num_points.tolist(), self.num_target_points]
        gps = cast(BoostedHierarchy, self.prior.gps)
        variances = (*gps.levels.variance(X).unbind(dim=-2), mvn.variance)
        # Variances are clipped, because the gradient of a power is not finite at zero.
        combined, *others = (variance.clamp_min(1e-12) for variance in variances)
        for below, above, variance in zip(sizes, sizes[1:], others, strict=False):
            beta = self.deviation_weight * above / (self.deviation_weight * above + below)
            combined = variance**beta * combined ** (1 - beta)
        scale = (combined / mvn.variance).sqrt()
        covariance = mvn.covariance_matrix * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return MultivariateNormal(mvn.mean, to_linear_operator(covariance))

    @property
    def _predicts_otherwise(self) -> bool:
        return self.deviation_weight is not None


class BoostedHierarchicalGP(HierarchicalGP):
    r"""BHGP [Tighineanu2022hierarchical]_: MHGP's mean, and a covariance with source uncertainty.

    Mean, hyperparameters and fit are the same as in :class:`MeanHierarchicalGP`. For every task, a
    part of the previous task's uncertainty remains after the task's own data are known. The
    covariance includes this part. For the target's inputs ``X`` and noise variance ``σ²``, let
    ``A(x) = k_t(x, X) [k_t(X, X) + σ²I]⁻¹``. Let ``P`` be the covariance of MHGP, and ``C`` the
    covariance of the last source task. Then

    .. code-block:: text

        C_t(x, x') = P(x, x') + Cov[f(x) - A(x) f(X)],   f ~ GP(0, C)

    Use BHGP for a hierarchy with many points in each level. BHGP is the cheapest hierarchical model
    that includes the sources' uncertainty. The variance of BHGP is never less than the variance of
    MHGP.

    Args:
        prior: A :class:`SourceHierarchy` with ``propagate="mean"``, or source data from which such
            a hierarchy is fitted. In the hierarchy, each source task builds on the previous task.
            Fits are cached: equal data are not refitted.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a lengthscale
            for each input.

    Raises:
        ValueError: If ``propagate`` of the hierarchy is not ``"mean"``, or if the input transform
            does not match the prior's transform.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = BoostedHierarchicalGP(X[:3], X[:3, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    propagate = "mean"

    def _add_parts(self) -> None:
        self.source_covar_module = WeightedSumKernel(self.prior.gps)

    @property
    def _terms(self) -> tuple[Kernel, ...]:
        """The residual kernel, and the posterior covariance of the last source task."""
        return self.covar_module, self.source_covar_module

    def _predict(self, X: Tensor) -> MultivariateNormal:
        """Predicts like MHGP, and adds the uncertainty of the last source task ``f``.

        The method adds ``Cov[f(x) - A(x) f(X)]`` to the covariance. ``A(x)`` are the coefficients
        of the target's outcomes in the predicted mean.
        """
        mvn = self.exact_gp(X)
        X, kernel = X.expand(*mvn.batch_shape, *X.shape[-2:]), self.source_covar_module
        covariance = evaluated(mvn.lazy_covariance_matrix) + evaluated(kernel(X))
        if self.num_target_points > 0:
            train_X, root = self.strategy.X, self.strategy.root
            A = evaluate(self.covar_module, X, train_X) @ root @ root.mT
            # Whitened values of the second argument are cached, and shared by all models of a
            # batch.
            between = evaluate(kernel, X, train_X)
            half = 0.5 * A @ evaluate(kernel, train_X, train_X) - between
            # A C Aᵀ - B Aᵀ - A Bᵀ with B = `between`: low-rank products, lazy for many points.
            lower = evaluated(MatmulLinearOperator(half, A.mT))
            covariance = covariance + lower + lower.mT
        return MultivariateNormal(mvn.mean, to_linear_operator(covariance))

    def _draws(self, path: SamplePath, draw: Callable[[Mean, Kernel], SamplePath]) -> SamplePath:
        return path  # the prior covariance, and thus each draw, includes the last source task
