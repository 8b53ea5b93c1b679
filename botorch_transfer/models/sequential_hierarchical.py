r"""SHGP: means and covariances are passed on from level to level.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from gpytorch.kernels import AdditiveKernel, Kernel

from botorch_transfer.kernels.weighted_sum import WeightedSumKernel
from botorch_transfer.models.hierarchical import HierarchicalGP
from botorch_transfer.pretraining.source_hierarchy import Propagate, SourceHierarchy


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
