r"""What the hierarchical models share: the target is the last source task plus a difference.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from botorch_transfer.kernels.residual import residual_kernel
from botorch_transfer.means.weighted_sum import WeightedSumMean
from botorch_transfer.models.construction import PriorOrData
from botorch_transfer.models.modular import ModularTransferGP, resolve_prior
from botorch_transfer.pretraining.source_hierarchy import Propagate, SourceHierarchy


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
