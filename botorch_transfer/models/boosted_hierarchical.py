r"""BHGP: means are passed on, and what they are unsure of is added to the covariance.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_transfer.kernels.weighted_sum import WeightedSumKernel
from botorch_transfer.models.adjusted_hierarchical import AdjustedHierarchicalGP
from botorch_transfer.models.construction import PriorOrData
from botorch_transfer.pretraining.source_hierarchy import Propagate


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
