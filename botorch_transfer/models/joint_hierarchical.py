r"""HGP: every task adds to what the tasks before it have.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from botorch_transfer.data import MAX_JOINT_BYTES, SourceData, as_datasets
from botorch_transfer.kernels.hierarchical_coregionalization import HierarchicalKernel
from botorch_transfer.models.joint import JointTransferGP, task_kernels


class JointHierarchicalGP(JointTransferGP):
    r"""HGP [Tighineanu2022hierarchical]_: a joint GP over a hierarchy of tasks.

    .. code-block:: text

        f_1 = g_1        f_n = f_{n-1} + g_n        f_t = f_M + g_t

    with independent ``g_n ~ GP(0, k_n)``. Use it for a few tasks in a natural order, each a
    revision of the one before, with so few evaluations that they are better fitted together. The
    cost is that of one GP on the evaluations of all tasks; ``SequentialHierarchicalGP`` is the same
    model, trained task after task.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        source_data: The source tasks, in order, a sequence or a mapping from names: each a
            ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``) and maybe
            ``Yvar`` (``n_i x 1``, known noise variances).
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances.
        likelihood: A likelihood; by default Gaussian with ``train_Yvar`` or an inferred noise.
        covar_modules: One kernel a task, target last; by default scaled RBF with a lengthscale for
            each input, hyperpriors those of ScaML-GP's source tasks and residual.
        outcome_transform: The transform of the target's outcomes; by default a standardization by
            the outcomes of all sources and the target together, ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.
        max_bytes: The memory that the joint model may take.

    Raises:
        InputDataError: If data are unfit, or too large for a joint model.
        ValueError: If the transform is not frozen, or the number of kernels wrong.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = JointHierarchicalGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.residual_covar_module.outputscale
        tensor(...
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_modules: Sequence[Kernel] | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        max_bytes: float = MAX_JOINT_BYTES,
    ) -> None:
        datasets = as_datasets(source_data)
        dim, batch_shape = datasets[0].X.shape[-1], train_X.shape[:-2]
        kernels = task_kernels(covar_modules, len(datasets), dim, batch_shape)
        super().__init__(
            train_X,
            train_Y,
            datasets,
            kernel=HierarchicalKernel(kernels, batch_shape),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
            max_bytes=max_bytes,
        )

    @property
    def residual_covar_module(self) -> Kernel:
        """The target's own kernel ``k_t``."""
        return self.covar_modules[-1]
