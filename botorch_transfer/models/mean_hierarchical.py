r"""MHGP, also known as StackGP: only means are passed on.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
.. [Golovin2017vizier]
    D. Golovin et al. Google Vizier: A Service for Black-Box Optimization. KDD 2017.
"""

from __future__ import annotations

from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_transfer.kernels.hierarchy import BoostedHierarchy
from botorch_transfer.models.adjusted_hierarchical import AdjustedHierarchicalGP
from botorch_transfer.models.construction import PriorOrData
from botorch_transfer.pretraining.source_hierarchy import Propagate


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
