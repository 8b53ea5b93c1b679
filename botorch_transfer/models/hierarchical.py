"""What the hierarchical models share: the target is the last source task plus a difference.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.

Hierarchical models whose predictive covariance is another than their exact GP's.

SHGP: means and covariances are passed on from level to level.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.

MHGP, also known as StackGP: only means are passed on.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
.. [Golovin2017vizier]
    D. Golovin et al. Google Vizier: A Service for Black-Box Optimization. KDD 2017.

BHGP: means are passed on, and what they are unsure of is added to the covariance.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.posterior import Posterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import Likelihood
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.hyperpriors.spec import residual_kernel
from botorch_transfer.kernels.hierarchy import BoostedHierarchy
from botorch_transfer.kernels.weighted_sum import WeightedSumKernel, WeightedSumMean
from botorch_transfer.models.inputs import PriorOrData
from botorch_transfer.models.modular import ModularTransferGP, resolve_prior
from botorch_transfer.models.target import (
    exact_leave_one_out,
    leave_one_out_posterior,
    observation_noise_variance,
)
from botorch_transfer.pretraining.source_gps.hierarchy import Propagate, SourceHierarchy


class HierarchicalGP(ModularTransferGP):
    """What the hierarchical models share: their prior and their residual kernel.

    Subclasses say what the levels pass on to each other, and whether the target's kernel has a
    source part.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: The :class:`SourceHierarchy`, or source data to fit one from, in the order of levels.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian.
        covar_module: The residual kernel, of the target's difference from the last source task.
        outcome_transform: By default the standardization by all source and target outcomes
            together; ``None`` if the outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
        ValueError: If its levels pass on something else than this model needs.
    """

    propagate: Propagate
    prior: SourceHierarchy
    mean_module: WeightedSumMean

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
    ) -> None:
        stack = resolve_prior(
            SourceHierarchy, prior, input_transform=input_transform, propagate=self.propagate
        )
        if stack.propagate != self.propagate:
            raise ValueError(
                f"{type(self).__name__} needs a SourceHierarchy with propagate={self.propagate!r}, "
                f"and this one has {stack.propagate!r}: fit it with propagate={self.propagate!r}."
            )
        if covar_module is None:
            covar_module = residual_kernel(stack.dim, train_X.shape[:-2])
        super().__init__(
            train_X,
            train_Y,
            prior=stack,
            mean_module=WeightedSumMean(stack.gps),
            covar_module=self._target_kernel(covar_module, stack),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
        )

    def _target_kernel(self, residual: Kernel, stack: SourceHierarchy) -> Kernel:
        """The target's prior covariance: by default the residual kernel alone."""
        return residual

    @property
    def residual_covar_module(self) -> Kernel:
        """The residual kernel, of the target's difference from the last source task."""
        return self.covar_module


class AdjustedHierarchicalGP(HierarchicalGP):
    """A hierarchical model that corrects the covariance of its exact GP when it predicts.

    The likelihood, and so the fit, is that of the exact GP; whatever calls the model in evaluation
    mode, be it ``posterior`` or entropy search, gets the corrected covariance.
    """

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the exact GP's posterior with its covariance corrected."""
        mvn = super().__call__(*args, **kwargs)
        return mvn if self.training else self._adjust(mvn, args[0])

    @abstractmethod
    def _adjust(self, mvn: MultivariateNormal, X: Tensor) -> MultivariateNormal:
        """Corrects the covariance of a posterior at ``batch_shape x q x d`` inputs."""

    @abstractmethod
    def _loo_variance(self, variance: Tensor, weights: Tensor) -> Tensor:
        """Corrects leave-one-out variances of the latent function.

        Args:
            variance: A ``batch_shape x n`` tensor: those of the exact GP.
            weights: A ``batch_shape x n x n`` tensor: the deviation of each point from what the
                others predict is a row of it times the deviations of all points.

        Returns:
            A ``batch_shape x n`` tensor.
        """

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, hyperparameters as they are.

        BoTorch's ``loo_cv`` reads the exact GP's covariance and so does not serve this model.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.

        Example:
            >>> model.loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        mean, variance = exact_leave_one_out(self)
        (X,) = self.train_inputs
        weights = torch.cholesky_inverse(self._residual_root(X))
        weights = weights / weights.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        variance = self._loo_variance(variance, weights)
        if observation_noise:
            variance = variance + self._noise(X)
        return leave_one_out_posterior(self, mean, variance)

    def _noise(self, X: Tensor) -> Tensor:
        """The observation noise variances of the target's points, ``batch_shape x n``."""
        return observation_noise_variance(self, X)

    def _residual_root(self, X: Tensor) -> Tensor:
        """The Cholesky factor of the residual's covariance at the target's points, with noise."""
        covariance = self.residual_covar_module(X).to_dense()
        return psd_safe_cholesky(covariance + self._noise(X).diag_embed())


class SequentialHierarchicalGP(HierarchicalGP):
    r"""SHGP [Tighineanu2022hierarchical]_: levels pass on their means and their covariances.

    Source task ``n`` is task ``n - 1`` plus a difference, a GP of its own, fitted level by level.
    With ``(μ, Σ)`` the posterior of the last source task, the target's prior is

    .. code-block:: text

        m_t(x) = μ(x)        k(x, x') = k_t(x, x') + Σ(x, x')

    At equal hyperparameters this is the joint hierarchical GP (Corollary 1), at the price of
    fitting a few hyperparameters at a time. Use it for tasks in an order, or a few tasks alike; its
    uncertainty is that of the joint model.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: A :class:`SourceHierarchy` with ``propagate="covariance"``, or source data to fit one
            from, the first task the lowest level. The same data are fitted once.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a lengthscale
            for each input.
        outcome_transform: By default the standardization by all source and target outcomes
            together; ``None`` if the outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
        ValueError: If the hierarchy passes on means only, or the input transform does not fit.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = SequentialHierarchicalGP(X[:3], X[:3, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    propagate: Propagate = "covariance"

    def _target_kernel(self, residual: Kernel, stack: SourceHierarchy) -> Kernel:
        # Not `+`, which would flatten a residual kernel that is itself a sum.
        return AdditiveKernel(residual, WeightedSumKernel(stack.gps))

    @property
    def residual_covar_module(self) -> Kernel:
        """The residual kernel ``k_t``."""
        return self.covar_module.kernels[0]


class MeanHierarchicalGP(AdjustedHierarchicalGP):
    r"""MHGP [Tighineanu2022hierarchical]_: levels pass on their means, as if these were certain.

    The target is a GP whose prior mean is the last source task's posterior mean, a plain sum over
    the levels. It is the simplest and cheapest of the hierarchical models. Far from target data its
    deviation is that of the residual alone, however little the sources know there: prefer
    :class:`SequentialHierarchicalGP` or :class:`BoostedHierarchicalGP`, unless sources are many and
    dense.

    With ``deviation_weight``, deviations are combined along the hierarchy instead, as in
    [Golovin2017vizier]_: ``σ_n = σ_residual^β σ_{n-1}^{1-β}``, ``β = a N_n / (a N_n + N_{n-1})``.
    The joint covariance is the residual's correlation times these deviations.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: A :class:`SourceHierarchy` with ``propagate="mean"``, or source data to fit one from,
            the first task the lowest level. The same data are fitted once.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a lengthscale
            for each input.
        outcome_transform: By default the standardization by all source and target outcomes
            together; ``None`` if the outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.
        deviation_weight: The factor ``a`` of the combined deviations, positive; ``None`` for MHGP's
            own.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
        ValueError: If the hierarchy passes on covariances, the input transform does not fit, or
            ``deviation_weight`` is not positive.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = MeanHierarchicalGP(X[:3], X[:3, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    propagate: Propagate = "mean"
    has_source_covariance = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        deviation_weight: float | None = None,
    ) -> None:
        if deviation_weight is not None and not deviation_weight > 0:
            raise ValueError(f"deviation_weight must be positive, not {deviation_weight}.")
        super().__init__(
            train_X,
            train_Y,
            prior,
            train_Yvar,
            likelihood,
            covar_module,
            outcome_transform,
            input_transform,
            task_feature,
        )
        self.deviation_weight = deviation_weight

    def _adjust(self, mvn: MultivariateNormal, X: Tensor) -> MultivariateNormal:
        if self.deviation_weight is None:
            return mvn
        combined = self._combined_variance(mvn.variance, X, self.num_target_points)
        scale = (combined / mvn.variance).sqrt()
        covariance = mvn.covariance_matrix * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return MultivariateNormal(mvn.mean, to_linear_operator(covariance))

    def _loo_variance(self, variance: Tensor, weights: Tensor) -> Tensor:
        if self.deviation_weight is None:
            return variance
        return self._combined_variance(variance, *self.train_inputs, self.num_target_points - 1)

    def _combined_variance(self, residual: Tensor, X: Tensor, num_points: int) -> Tensor:
        """Combines the variances of all levels' differences, the target's residual the last.

        Args:
            residual: A ``batch_shape x q`` tensor: the target's.
            X: A ``batch_shape x q x d`` tensor of inputs.
            num_points: The number of target points that the residual has seen.

        Returns:
            A ``batch_shape x q`` tensor.
        """
        gps = self.prior.gps
        assert isinstance(gps, BoostedHierarchy)
        sizes = [*self.prior.num_points.tolist(), num_points]
        combined, *variances = [*gps.level_variances(X).unbind(dim=-2), residual]
        for below, above, variance in zip(sizes, sizes[1:], variances, strict=False):
            beta = self.deviation_weight * above / (self.deviation_weight * above + below)
            combined = _positive(variance) ** beta * _positive(combined) ** (1 - beta)
        return combined


def _positive(variance: Tensor) -> Tensor:
    # A power of zero has no gradient.
    return variance.clamp_min(1e-12)


class BoostedHierarchicalGP(AdjustedHierarchicalGP):
    r"""BHGP [Tighineanu2022hierarchical]_: MHGP's mean with an honest covariance.

    Hyperparameters and mean are those of :class:`MeanHierarchicalGP`. The covariance adds, at every
    level, what the level below is unsure of after the level's own data: with
    ``A(x) = k_t(x, X) [k_t(X, X) + σ²I]⁻¹``, ``P`` the covariance of MHGP and ``C`` that of the
    last source task,

    .. code-block:: text

        C_t(x, x') = P(x, x') + Cov[f(x) - A(x) f(X)],   f ~ GP(0, C)

    Use it for a hierarchy with many points a level: it is the cheapest model whose uncertainty
    knows that of the sources, and never less than MHGP's.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: A :class:`SourceHierarchy` with ``propagate="mean"``, or source data to fit one from,
            the first task the lowest level. The same data are fitted once.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a lengthscale
            for each input.
        outcome_transform: By default the standardization by all source and target outcomes
            together; ``None`` if the outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
        ValueError: If the hierarchy passes on covariances, or the input transform does not fit.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = BoostedHierarchicalGP(X[:3], X[:3, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    propagate: Propagate = "mean"

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
    ) -> None:
        super().__init__(
            train_X,
            train_Y,
            prior,
            train_Yvar,
            likelihood,
            covar_module,
            outcome_transform,
            input_transform,
            task_feature,
        )
        self.source_covar_module = WeightedSumKernel(self.prior.gps)

    def _adjust(self, mvn: MultivariateNormal, X: Tensor) -> MultivariateNormal:
        """Adds ``Cov[f(x) - A(x) f(X)]`` for ``f`` of the last source task."""
        (train_X,) = self.train_inputs
        batch_shape = torch.broadcast_shapes(train_X.shape[:-2], X.shape[:-2])
        X = X.expand(*batch_shape, *X.shape[-2:])
        boost = self.source_covar_module(X).to_dense()
        if self.num_target_points > 0:
            points = train_X.expand(*batch_shape, *train_X.shape[-2:])
            cross = self.residual_covar_module(points, X).to_dense()
            A = torch.cholesky_solve(cross, self._residual_root(train_X)).mT
            # The target's points go second: what they need is remembered, and shared by batches.
            between = self.source_covar_module(X, points).to_dense() @ A.mT
            spread = A @ self.source_covar_module(train_X).to_dense() @ A.mT
            boost = boost - between - between.mT + spread
        covariance = mvn.covariance_matrix + boost
        return MultivariateNormal(mvn.mean, to_linear_operator(covariance))

    def _loo_variance(self, variance: Tensor, weights: Tensor) -> Tensor:
        covariance = self.source_covar_module(*self.train_inputs).to_dense()
        return variance + (weights @ covariance * weights).sum(dim=-1)
