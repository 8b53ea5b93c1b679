r"""WSGP: independent source tasks, weighted in the target.

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
from botorch_transfer.kernels.task_weights import TaskWeights
from botorch_transfer.kernels.weighted_sources import WeightedSourceKernel
from botorch_transfer.models.joint import JointTransferGP, task_kernels


class WeightedSourceGP(JointTransferGP):
    r"""WSGP [Tighineanu2022hierarchical]_: a joint GP with independent source tasks.

    .. code-block:: text

        k((x, i), (x', j)) = k_i(x, x') δ_ij + Σ_m w_m (δ_im + δ_it)(δ_jm + δ_jt) k_m(x, x')

    Source task ``m`` shares a function with the target, whose variance there and here is ``w_m``
    times that of a function it keeps to itself. The sources' covariance is block diagonal, so that
    cost grows linearly with the number of tasks. Use it for a few source tasks, each of which may
    help or not, with so few evaluations that target and sources are better fitted together;
    ``ScaMLGP`` is its fast, modular cousin.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        source_data: The source tasks, a sequence or a mapping from names: each a
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
        normalize: Whether to divide ``k_m`` by ``1 + w_m``, so that it is the source task's own
            covariance whatever its weight.
        max_bytes: The memory that the joint model may take.

    Raises:
        InputDataError: If data are unfit, or too large for a joint model.
        ValueError: If the transform is not frozen, or the number of kernels wrong.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = WeightedSourceGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.weights
        tensor([...
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
        normalize: bool = False,
        max_bytes: float = MAX_JOINT_BYTES,
    ) -> None:
        datasets = as_datasets(source_data)
        dim, batch_shape = datasets[0].X.shape[-1], train_X.shape[:-2]
        kernels = task_kernels(covar_modules, len(datasets), dim, batch_shape)
        task_weights = TaskWeights(len(datasets), batch_shape)
        super().__init__(
            train_X,
            train_Y,
            datasets,
            kernel=WeightedSourceKernel(kernels, task_weights, normalize),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
            max_bytes=max_bytes,
        )

    @property
    def weights(self) -> Tensor:
        """The source tasks' weights, a ``batch_shape x M`` tensor."""
        return self.conditional.kernel.task_weights.weights

    @property
    def residual_covar_module(self) -> Kernel:
        """The target's own kernel ``k_t``."""
        return self.covar_modules[-1]
