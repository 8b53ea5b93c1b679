r"""The five joint models: each chooses the kernel of one GP over source and target tasks.

All kernels are sums ``Σ_ν [W_ν]_ij k_ν(x, x')`` over data kernels ``k_ν``, for points ``x`` of task
``i`` and ``x'`` of task ``j``; the models differ in the matrices ``W_ν`` (see
``kernels.task_kernels``). Read it to choose among them; ``joint`` says how all of them are
conditioned and fitted.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.

.. [Tighineanu2023scaml]
    P. Tighineanu, L. Grossberger, P. Baireuther, K. Skubch, S. Falkner, J. Vinogradska and F.
    Berkenkamp. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024. arXiv:2312.00742.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.data import MAX_JOINT_BYTES, SourceData
from botorch_transfer.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.hyperpriors.spec import residual_kernel
from botorch_transfer.kernels.coregionalization import CoregionalizationKernel
from botorch_transfer.kernels.task_kernels import (
    HierarchicalKernel,
    IntrinsicCoregionalizationKernel,
    LinearCoregionalizationKernel,
    ScaMLKernel,
    WeightedSourceKernel,
)
from botorch_transfer.kernels.weights import TaskWeights
from botorch_transfer.models.joint import JointTransferGP


class LinearCoregionalizationGP(JointTransferGP):
    r"""MTGP [Tighineanu2022hierarchical]_: the linear model of coregionalization.

    .. code-block:: text

        k((x, i), (x', j)) = Σ_ν [W_ν]_ij k_ν(x, x')

    with ``M + 1`` kernels of unit variance, and a free positive semi-definite matrix ``W_ν`` each.
    It can describe any linear relation between tasks, at the price of ``O(M³)`` hyperparameters:
    use it for one or two source tasks with many evaluations, and a target with a few dozen. The
    cost is that of one GP on the evaluations of all tasks.

    Args:
        covar_modules: ``M + 1`` kernels of unit variance; by default RBF with a lengthscale for
            each input, which start at lengthscales from 0.25 to 1, because equal kernels would
            stay equal.
        outcome_transform: The transform of the target's outcomes; by default the standardization by
            the outcomes of all sources and the target together. ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.
        rank: The number of columns of each matrix's factor; ``M + 1`` if omitted.

    Raises:
        InputDataError: If data are unfit, or too large for a joint model.
        ValueError: If the transform is not frozen, the rank out of range or the number of kernels
            wrong.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = LinearCoregionalizationGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.task_covariances.shape
        torch.Size([2, 2, 2])
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_modules: Sequence[Kernel] | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        rank: int | None = None,
        max_bytes: float = MAX_JOINT_BYTES,
    ) -> None:
        self._rank = rank
        super().__init__(
            train_X,
            train_Y,
            source_data,
            train_Yvar,
            likelihood,
            covar_modules,
            outcome_transform,
            input_transform,
            task_feature,
            max_bytes,
        )

    def _default_kernels(self, num_tasks: int, dim: int, batch_shape: torch.Size) -> list[Kernel]:
        kernels = [_unit_kernel(dim, batch_shape) for _ in range(num_tasks)]
        for kernel, exponent in zip(kernels, torch.linspace(-1, 1, num_tasks), strict=True):
            kernel.lengthscale = kernel.lengthscale.detach() * 2**exponent
        return kernels

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        return LinearCoregionalizationKernel(
            data_kernels, num_tasks, self._rank, batch_shape=batch_shape
        )

    @property
    def task_covariances(self) -> Tensor:
        """The matrices ``W_ν``, a ``batch_shape x Q x T x T`` tensor."""
        return self.conditional.kernel.task_covariances()


class IntrinsicCoregionalizationGP(LinearCoregionalizationGP):
    r"""MTKGP [Tighineanu2022hierarchical]_: the intrinsic model of coregionalization.

    .. code-block:: text

        k((x, i), (x', j)) = W_ij k(x, x')

    with one kernel of unit variance and one free positive semi-definite matrix; it is the model of
    BoTorch's ``MultiTaskGP``, seen through its target. Use it for a few source tasks that vary over
    the same length scales as the target, and differ in size and sign. The cost is that of one GP
    on the evaluations of all tasks.

    Args:
        covar_modules: A list of one kernel of unit variance, which all tasks share; by default RBF
            with a lengthscale for each input.
        outcome_transform: The transform of the target's outcomes; by default the standardization by
            the outcomes of all sources and the target together. ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.
        rank: The number of columns of the matrix's factor; ``M + 1`` if omitted.

    Raises:
        InputDataError: If data are unfit, or too large for a joint model.
        ValueError: If the transform is not frozen, the rank out of range, or there is more than one
            kernel.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = IntrinsicCoregionalizationGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> model.task_covariances
        tensor([[1.1000, 1.0000],
                [1.0000, 1.1000]], dtype=torch.float64, grad_fn=<...>)
    """

    def _default_kernels(self, num_tasks: int, dim: int, batch_shape: torch.Size) -> list[Kernel]:
        return [_unit_kernel(dim, batch_shape)]

    def _check_number(self, num_kernels: int, num_tasks: int) -> None:
        if num_kernels != 1:
            raise ValueError(
                f"There are {num_kernels} covar_modules, but in this model all tasks share one "
                "kernel: give one, or use LinearCoregionalizationGP."
            )

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        (data_kernel,) = data_kernels
        return IntrinsicCoregionalizationKernel(
            data_kernel, num_tasks, self._rank, batch_shape=batch_shape
        )

    @property
    def task_covariances(self) -> Tensor:
        """The matrix ``W``, a ``batch_shape x T x T`` tensor."""
        return super().task_covariances.squeeze(-3)


def _unit_kernel(dim: int, batch_shape: torch.Size) -> Kernel:
    """An RBF kernel of unit variance with the hyperprior of source tasks."""
    return residual_kernel(dim, batch_shape, SOURCE_HYPERPARAMETERS).base_kernel


class JointHierarchicalGP(JointTransferGP):
    r"""HGP [Tighineanu2022hierarchical]_: a joint GP over a hierarchy of tasks.

    .. code-block:: text

        f_1 = g_1        f_n = f_{n-1} + g_n        f_t = f_M + g_t

    with independent ``g_n ~ GP(0, k_n)``. Use it for a few tasks in a natural order, each a
    revision of the one before, with so few evaluations that they are better fitted together. The
    cost is that of one GP on the evaluations of all tasks; ``SequentialHierarchicalGP`` is the same
    model, trained task after task.

    Args:
        source_data: The source tasks, in order, a sequence or a mapping from names: each a
            ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``) and maybe
            ``Yvar`` (``n_i x 1``, known noise variances).
        outcome_transform: The transform of the target's outcomes; by default the standardization by
            the outcomes of all sources and the target together. ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.

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

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        return HierarchicalKernel(data_kernels, batch_shape=batch_shape)

    @property
    def residual_covar_module(self) -> Kernel:
        """The target's own kernel ``k_t``."""
        return self.covar_modules[-1]


class _IndependentSourcesGP(JointTransferGP):
    """A joint model whose source tasks are independent, and weighted in the target."""

    @property
    def weights(self) -> Tensor:
        """The source tasks' weights, a ``batch_shape x M`` tensor."""
        return self.conditional.kernel.task_weights.weights

    @property
    def residual_covar_module(self) -> Kernel:
        """The target's own kernel ``k_t``."""
        return self.covar_modules[-1]


class WeightedSourceGP(_IndependentSourcesGP):
    r"""WSGP [Tighineanu2022hierarchical]_: a joint GP with independent source tasks.

    .. code-block:: text

        k((x, i), (x', j)) = k_i(x, x') δ_ij + Σ_m w_m (δ_im + δ_it)(δ_jm + δ_jt) k_m(x, x')

    Source task ``m`` shares a function with the target, whose variance there and here is ``w_m``
    times that of a function it keeps to itself. The sources' covariance is block diagonal, so that
    cost grows linearly with the number of tasks. Use it for a few source tasks, each of which may
    help or not, with so few evaluations that target and sources are better fitted together;
    ``ScaMLGP`` is its fast, modular cousin.

    Args:
        outcome_transform: The transform of the target's outcomes; by default the standardization by
            the outcomes of all sources and the target together. ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.
        normalize: Whether to divide ``k_m`` by ``1 + w_m``, so that it is the source task's own
            covariance whatever its weight.

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
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        normalize: bool = False,
        max_bytes: float = MAX_JOINT_BYTES,
    ) -> None:
        self._normalize = normalize
        super().__init__(
            train_X,
            train_Y,
            source_data,
            train_Yvar,
            likelihood,
            covar_modules,
            outcome_transform,
            input_transform,
            task_feature,
            max_bytes,
        )

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        weights = TaskWeights(num_tasks - 1, batch_shape)
        return WeightedSourceKernel(data_kernels, weights, self._normalize)


class JointScaMLGP(_IndependentSourcesGP):
    r"""The joint GP behind ScaML-GP [Tighineanu2023scaml]_: weighted sources plus a residual.

    .. code-block:: text

        f_m ~ GP(0, k_m)        f_t = g_t + Σ_m w_m f_m        g_t ~ GP(0, k_t)

    At equal hyperparameters it is ``ScaMLGP``; here those of the source tasks are fitted together
    with the target's. Use it where the source tasks have so few evaluations that the target's say
    something about them. The sources' covariance is block diagonal, so that cost grows linearly
    with the number of tasks.

    Args:
        outcome_transform: The transform of the target's outcomes; by default the standardization by
            the outcomes of all sources and the target together. ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.

    Raises:
        InputDataError: If data are unfit, or too large for a joint model.
        ValueError: If the transform is not frozen, or the number of kernels wrong.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = JointScaMLGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.weights
        tensor([...
    """

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        return ScaMLKernel(
            data_kernels, TaskWeights(num_tasks - 1, batch_shape, GammaPrior(1.0, 1.0))
        )
