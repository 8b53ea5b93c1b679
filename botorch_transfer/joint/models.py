r"""Joint models: one GP over source and target tasks, used as a model of the target.

With the target's outcomes ``y_t`` and the source outcomes ``y_s``, the joint log likelihood is the
sum ``log p(y_t, y_s) = log p(y_t | y_s) + log p(y_s)``. The model is an exact GP on the target's
data. The mean and the kernel of this exact GP are the mean and the kernel of the joint GP given the
source data (``joint.conditional``). The log likelihood of this exact GP is ``log p(y_t | y_s)``. A
fit adds ``log p(y_s)``, which is registered with GPyTorch as an added loss term.

All kernels are sums ``Σ_ν [W_ν]_ij k_ν(x, x')`` over *data kernels* ``k_ν``, which are kernels over
the inputs only. The point ``x`` belongs to task ``i``, and ``x'`` belongs to task ``j``. The five
models differ in the matrices ``W_ν`` (see ``joint.kernels``).

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.

.. [Tighineanu2023scaml]
    P. Tighineanu, L. Grossberger, P. Baireuther, K. Skubch, S. Falkner, J. Vinogradska and F.
    Berkenkamp. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024. arXiv:2312.00742.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.data import MAX_JOINT_BYTES, SourceData, task_names
from botorch_transfer.data.datasets import check_joint_size, joint_bytes
from botorch_transfer.data.domains import transform_outcomes
from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.gp.hyperpriors import (
    SOURCE_HYPERPARAMETERS,
    TYPICAL_RESIDUAL,
    GPHyperparameters,
    HyperparameterChoice,
    residual_kernel,
    target_hyperparameters,
    weight_prior,
)
from botorch_transfer.gp.objective import is_gaussian_or_known
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import (
    OutcomeScale,
    PaddedTasks,
    outcome_scales,
    outcome_variance,
    target_transform,
)
from botorch_transfer.input_transforms import frozen_input_transform, warn_outside_unit_cube
from botorch_transfer.joint import kernels as coregionalization
from botorch_transfer.joint.conditional import (
    JointObjective,
    SourceConditional,
    SourceConditionalKernel,
    SourceConditionalMean,
    SourceNoise,
    SourcePoints,
)
from botorch_transfer.joint.kernels import CoregionalizationKernel
from botorch_transfer.model import TargetGP
from botorch_transfer.outcome_transforms import OutcomeMoments, resolve_transform, split_transform
from botorch_transfer.prior import TransferPrior

#: Default number of starts of a fit that are sampled from the hyperpriors. One more start uses the
#: current hyperparameters. A fit has fewer sampled starts if memory is short.
MAX_RESTARTS = 2


class JointTransferGP(TargetGP):
    r"""Base class of the joint models: an exact GP over all tasks, used to predict the target.

    The kernel of the joint GP is a coregionalization kernel over inputs and tasks. Subclasses build
    this kernel in :meth:`_coregionalization`. A fit maximizes the joint log likelihood
    ``log p(y_t | y_s) + log p(y_s)`` of target and source outcomes over the hyperparameters of all
    tasks. Without target points, a fit maximizes ``log p(y_s)`` over the source hyperparameters.

    Args:
        prior: The source tasks, a sequence or a mapping from names to tasks. Each task is a
            ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``) and optionally
            ``Yvar`` (``n_i x 1``, known noise variances).
        outcome_transform: The transform of the target's outcomes; by default the transform that
            matches ``outcome_scale``. ``Log``, ``Bilog`` and ``Power`` are also applied to the
            source outcomes. Use ``None`` if the target's outcomes already have the units of the
            scaled source outcomes.
        input_transform: A frozen transform of all tasks' inputs.

    Raises:
        InputDataError: If data are invalid, or too large for a joint model.
        ValueError: If the input transform is not frozen, if ``outcome_scale`` is unknown, if the
            number of kernels is wrong, or if ``max_points`` is less than the number of source
            tasks.
    """

    _fits_sources = True
    max_fit_iterations = 200  # the objective has flat ridges, on which a fit would not converge
    covar_module: SourceConditionalKernel

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: Sequence[SourceData] | Mapping[str, SourceData],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_modules: Sequence[Kernel] | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        max_bytes: float = MAX_JOINT_BYTES,
        outcome_scale: OutcomeScale = "per_task",
        hyperparameters: HyperparameterChoice = "cautious",
        max_points: int | None = None,
    ) -> None:
        if isinstance(prior, TransferPrior):
            raise TypeError(
                f"{type(self).__name__} is fitted together with its source tasks, but prior= is a "
                f"{type(prior).__name__}: give the source data as prior=."
            )
        steps, _ = split_transform(outcome_transform)
        datasets = list(transform_outcomes(prior, steps).values())
        dim, batch_shape = datasets[0].X.shape[-1], train_X.shape[:-2]
        num_tasks = len(datasets) + 1
        most = _most_of_a_task([len(dataset.X) for dataset in datasets], max_points)
        input_transform = frozen_input_transform(input_transform, datasets)
        tasks = PaddedTasks.from_datasets(datasets, input_transform).typical(most)
        sizes: list[int] = tasks.num_points.tolist()
        self._hyperparameters = hyperparameters
        if input_transform is None:
            warn_outside_unit_cube(tasks.X, "the source tasks")
        old = tasks.Y[tasks.mask], tasks.mask.nonzero()[:, 0]
        moments = OutcomeMoments.of(old[0])
        variance = TYPICAL_RESIDUAL * outcome_variance(outcome_scale, moments)
        own = target_hyperparameters(hyperparameters, dim, variance)
        kernels: Sequence[Kernel] = self._default_kernels(num_tasks, dim, batch_shape, own)
        if covar_modules is not None:
            if len(covar_modules) != len(kernels):
                raise ValueError(
                    f"covar_modules= has {len(covar_modules)} kernels, but {type(self).__name__} "
                    f"needs {len(kernels)}. Give a single kernel for IntrinsicCoregionalizationGP. "
                    "For other models, give one kernel for each task, the target's kernel last."
                )
            kernels = covar_modules
        kernel = self._coregionalization(kernels, num_tasks, batch_shape)
        self.num_restarts = _affordable_restarts(sizes, kernel, train_X, max_bytes)
        tasks = tasks.standardize(*outcome_scales(tasks, outcome_scale))
        default = partial(target_transform, outcome_scale, moments, batch_shape)
        transform = resolve_transform(outcome_transform, steps, default, train_Y, old)
        X, Y, Yvar = (values[tasks.mask] for values in (tasks.X, tasks.Y, tasks.Yvar))
        points = SourcePoints(X, Y, Yvar, sizes, task_names(prior))
        known: list[bool] = tasks.fixed_noise.tolist()
        noise = SourceNoise(known, SOURCE_HYPERPARAMETERS.noise, batch_shape)
        conditional = SourceConditional(kernel, points, noise)
        mean, covariance = SourceConditionalMean(conditional), SourceConditionalKernel(conditional)
        modules = train_Yvar, likelihood, transform, input_transform, task_feature
        super().__init__(train_X, train_Y, dim, mean, covariance, *modules, own.noise)

    def _default_kernels(
        self, num_tasks: int, dim: int, batch_shape: torch.Size, own: GPHyperparameters
    ) -> list[Kernel]:
        """Builds the default kernels over inputs: one for each task, with the target's kernel last.

        Args:
            num_tasks: The number of tasks, the target included.
            dim: The number of inputs.
            batch_shape: The batch shape of the target model.
            own: Hyperpriors, starting values and bounds of the target's own kernel.
        """
        hyperparameters = [SOURCE_HYPERPARAMETERS] * (num_tasks - 1) + [own]
        return [residual_kernel(dim, batch_shape, each) for each in hyperparameters]

    @abstractmethod
    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        """Builds the joint GP's kernel over inputs and tasks. The target is the last task."""

    @property
    def conditional(self) -> SourceConditional:
        """The target task of the joint GP, given the source data."""
        return self.covar_module.conditional

    @property
    def covar_modules(self) -> list[Kernel]:
        """The kernels over inputs: one for each task (target last), or one kernel for all tasks."""
        return [cast(Kernel, kernel) for kernel in self.conditional.kernel.data_kernels]

    @property
    def source_noise(self) -> Tensor:
        """The inferred noise variances, one for each source task without known noise."""
        return self.conditional.noise.noise

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the target's prior, given the source data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The prior. In training mode, this method also registers the log likelihood
            ``log p(y_s)`` of the source data with GPyTorch, as an added loss term.
        """
        if not self.training:
            return super().forward(x)
        x = self.transform_inputs(x)
        with self.conditional.sharing(x):
            self._set_loss_term(self.conditional.factor().log_likelihood)
            mean = self.conditional.mean(x)
            # A linear operator, because GPyTorch would factorize a tensor before it adds noise.
            covariance = to_linear_operator(self.conditional.covariance(x))
        return MultivariateNormal(mean, covariance)

    def custom_fit(
        self, mll: ExactMarginalLogLikelihood, *args: Any, **kwargs: Any
    ) -> ExactMarginalLogLikelihood:
        """Fits the hyperparameters of all tasks; ``fit_gpytorch_mll`` calls this method.

        By default, a fit has three starts: the current hyperparameters, and two samples of the
        hyperpriors. If three starts need more memory than ``max_bytes``, the fit omits one or both
        samples. The expected duration of a long fit is logged (``logging.INFO``).

        Without target points, only the kernels and the noise variances of the source tasks are
        fitted; weights and task covariances do not change.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        if self.num_target_points > 0:
            return super().custom_fit(mll, *args, **kwargs)
        of_sources = SourceMarginalLogLikelihood(mll.likelihood, self)
        with target_frozen(of_sources):
            super().custom_fit(of_sources, *args, **kwargs)
        return mll.eval()

    def closed_form(self, mll: ExactMarginalLogLikelihood) -> JointObjective | None:
        """Returns a fast fit objective that does not call GPyTorch, or ``None``.

        Args:
            mll: The marginal log likelihood of this model, in training mode.

        Returns:
            The objective, or ``None`` if it does not support the model. The objective supports only
            models whose kernels over inputs are all RBF or Matérn. The target's noise variances
            must be known, learned (one variance for all points), or the sum of a known and a
            learned variance.
        """
        has_closed_form = (
            type(mll) in (ExactMarginalLogLikelihood, SourceMarginalLogLikelihood)
            and type(self).forward is JointTransferGP.forward
            and all(Stationary.of(kernel) is not None for kernel in self.covar_modules)
            and is_gaussian_or_known(self.likelihood)
            and JointObjective.is_served(mll)
        )
        return JointObjective(mll) if has_closed_form else None


class SourceMarginalLogLikelihood(ExactMarginalLogLikelihood):
    """Marginal log likelihood of the source data plus log hyperpriors.

    It is the objective of a fit if the target has no data.
    """

    def forward(
        self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Evaluates the marginal log likelihood of the source data plus the log hyperpriors.

        Args:
            function_dist: The model's output for an empty set of target points.
            target: Ignored.
            *params: Ignored.
            **kwargs: Ignored.

        Returns:
            A ``batch_shape`` tensor: log likelihood plus log hyperpriors, divided by the number of
            source points. GPyTorch also divides by the number of training points.
        """
        nothing = function_dist.mean.sum(dim=-1)
        total: Tensor = self._add_other_terms(nothing, params)
        return total / sum(self.model.conditional.points.sizes)


@contextmanager
def target_frozen(mll: SourceMarginalLogLikelihood) -> Iterator[None]:
    """Freezes all hyperparameters except the source tasks' kernels and noise variances.

    Use it for a fit if the target has no data. If the target's hyperparameters were not frozen, the
    fit would move them to the modes of their hyperpriors, and the residual's variance would become
    tiny. Weights and coregionalization matrices are also frozen, because they relate the target to
    the sources. For instance, source data alone would move the weights of WSGP to zero.

    Args:
        mll: The marginal log likelihood that is maximized inside the ``with`` block.
    """
    conditional = mll.model.conditional
    kernels = zip(conditional.kernel.data_kernels, conditional.kernel.support, strict=True)
    of_sources = [kernel for kernel, tasks in kernels if any(tasks[:-1])]
    fitted = {p for module in (*of_sources, conditional.noise) for p in module.parameters()}
    frozen = [p for p in mll.model.parameters() if p.requires_grad and p not in fitted]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def _most_of_a_task(sizes: Sequence[int], max_points: int | None) -> int:
    """Computes the limit on the number of points of each source task.

    It is the largest limit with which all tasks together have at most ``max_points`` points.
    """
    if max_points is None or sum(sizes) <= max_points:
        return max(sizes)
    if max_points < len(sizes):
        raise ValueError(
            f"max_points={max_points} is less than the number of source tasks, {len(sizes)}: give "
            f"max_points={len(sizes)} or more, or give fewer source tasks."
        )
    limits = range(1, max(sizes))
    return max(n for n in limits if sum(min(n, size) for size in sizes) <= max_points)


def _affordable_restarts(
    sizes: Sequence[int], kernel: CoregionalizationKernel, train_X: Tensor, max_bytes: float
) -> int:
    """Computes the number of further starts of a fit, after the first start.

    All starts together need at most ``max_bytes`` of memory. Raises an error if the first start
    already needs more memory.
    """
    *batch_shape, num_target_points, _ = train_X.shape
    num_points = dense = sum(sizes)
    if kernel.sources_are_independent:
        # Number of rows of a dense matrix with the same memory as the block diagonal matrix.
        dense = math.isqrt(sum(size**2 for size in sizes))
    needed = joint_bytes(dense + num_target_points, train_X.dtype)
    if needed > max_bytes:
        check_joint_size(num_points + num_target_points, train_X.dtype, max_bytes)
    starts = max_bytes / math.prod(batch_shape) / needed
    return int(max(0, min(MAX_RESTARTS, starts - 1)))


class _FreeCoregionalizationGP(JointTransferGP):
    """Base class of the joint models with a free task covariance for each kernel over inputs."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: Sequence[SourceData] | Mapping[str, SourceData],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_modules: Sequence[Kernel] | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        rank: int | None = None,
        max_bytes: float = MAX_JOINT_BYTES,
        outcome_scale: OutcomeScale = "per_task",
        max_points: int | None = None,
    ) -> None:
        self._rank = rank
        modules = (likelihood, covar_modules, outcome_transform, input_transform)
        options = (task_feature, max_bytes, outcome_scale)
        super().__init__(
            train_X, train_Y, prior, train_Yvar, *modules, *options, max_points=max_points
        )

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        return coregionalization.LinearCoregionalizationKernel(
            data_kernels, num_tasks, self._rank, batch_shape=batch_shape
        )


class LinearCoregionalizationGP(_FreeCoregionalizationGP):
    r"""MTGP [Tighineanu2022hierarchical]_: the linear model of coregionalization.

    .. code-block:: text

        k((x, i), (x', j)) = Σ_ν [W_ν]_ij k_ν(x, x')

    For ``M`` source tasks, the model has ``M + 1`` kernels of unit variance, each with a free
    positive semi-definite task covariance matrix ``W_ν``. The model can describe any linear
    relation between tasks, but has ``O(M³)`` hyperparameters. Use it for one or two source tasks
    with many evaluations, and a target with a few dozen evaluations. The model costs as much as one
    GP on the evaluations of all tasks.

    Args:
        covar_modules: ``M + 1`` kernels of unit variance; by default RBF with a lengthscale for
            each input. Initial lengthscales range from 0.25 to 1, because equal kernels would stay
            equal in a fit.
        rank: The number of columns of the factor of each matrix ``W_ν``; if omitted, ``M + 1``,
            where ``M`` is the number of source tasks.

    Raises:
        InputDataError: If data are invalid, or too large for a joint model.
        ValueError: If the input transform is not frozen, if ``outcome_scale`` is unknown, if
            ``rank`` is out of range, or if the number of kernels is wrong.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = LinearCoregionalizationGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.task_covariances.shape
        torch.Size([2, 2, 2])
    """

    def _default_kernels(
        self, num_tasks: int, dim: int, batch_shape: torch.Size, own: GPHyperparameters
    ) -> list[Kernel]:
        kernels = [_unit_kernel(dim, batch_shape) for _ in range(num_tasks)]
        for kernel, exponent in zip(kernels, torch.linspace(-1, 1, num_tasks), strict=True):
            kernel.lengthscale = kernel.lengthscale.detach() * 2**exponent
        return kernels

    @property
    def task_covariances(self) -> Tensor:
        """The task covariance matrices ``W_ν``, a ``batch_shape x Q x T x T`` tensor.

        There are ``Q`` kernels over inputs, and ``T`` tasks with the target last.
        """
        return self.conditional.kernel.task_covariances()


class IntrinsicCoregionalizationGP(_FreeCoregionalizationGP):
    r"""MTKGP [Tighineanu2022hierarchical]_: the intrinsic model of coregionalization.

    .. code-block:: text

        k((x, i), (x', j)) = W_ij k(x, x')

    The model has one kernel of unit variance and one free positive semi-definite task covariance
    matrix ``W``. BoTorch's ``MultiTaskGP`` is the same model, but predicts all tasks. Use
    ``IntrinsicCoregionalizationGP`` for a few source tasks with the same lengthscales as the
    target, but different scales or signs. The model costs as much as one GP on the evaluations of
    all tasks.

    Args:
        covar_modules: A list with one kernel of unit variance for all tasks; by default RBF with a
            lengthscale for each input.
        rank: The number of columns of the factor of ``W``; if omitted, ``M + 1``, where ``M`` is
            the number of source tasks.

    Raises:
        InputDataError: If data are invalid, or too large for a joint model.
        ValueError: If the input transform is not frozen, if ``outcome_scale`` is unknown, if
            ``rank`` is out of range, or if there is more than one kernel.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = IntrinsicCoregionalizationGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> model.task_covariances
        tensor([[1.1000, 1.0000],
                [1.0000, 1.1000]], dtype=torch.float64, grad_fn=<...>)
    """

    def _default_kernels(
        self, num_tasks: int, dim: int, batch_shape: torch.Size, own: GPHyperparameters
    ) -> list[Kernel]:
        return [_unit_kernel(dim, batch_shape)]

    @property
    def task_covariances(self) -> Tensor:
        """The task covariance matrix ``W``, target last: a ``batch_shape x T x T`` tensor."""
        return self.conditional.kernel.task_covariances().squeeze(-3)


def _unit_kernel(dim: int, batch_shape: torch.Size) -> Kernel:
    """Builds an RBF kernel of unit variance, with the lengthscale hyperprior of source GPs."""
    return residual_kernel(dim, batch_shape, SOURCE_HYPERPARAMETERS).base_kernel


class _OwnKernelsGP(JointTransferGP):
    """Base class of the joint models with a kernel that only the target uses."""

    @property
    def residual_covar_module(self) -> Kernel:
        """The target's own kernel, which no source task uses."""
        return self.covar_modules[-1]


class JointHierarchicalGP(_OwnKernelsGP):
    r"""HGP [Tighineanu2022hierarchical]_: a joint GP over a hierarchy of tasks.

    .. code-block:: text

        f_1 = g_1        f_n = f_{n-1} + g_n        f_t = f_M + g_t

    Source task ``n`` has the function ``f_n``, the target has ``f_t``, and the differences
    ``g_n ~ GP(0, k_n)`` are independent. Use this model for a few tasks in a natural order, if each
    task is a revision of the previous task, and has too few evaluations for a separate fit. The
    model costs as much as one GP on the evaluations of all tasks. ``SequentialHierarchicalGP`` is
    the same model, but its hyperparameters are fitted task after task.

    Args:
        prior: The source tasks in order, a sequence or a mapping from names to tasks. Each task is
            a ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``) and
            optionally ``Yvar`` (``n_i x 1``, known noise variances).

    Raises:
        InputDataError: If data are invalid, or too large for a joint model.
        ValueError: If the input transform is not frozen, if ``outcome_scale`` is unknown, or if the
            number of kernels is wrong.

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
        return coregionalization.HierarchicalKernel(data_kernels, batch_shape=batch_shape)


class _IndependentSourcesGP(_OwnKernelsGP):
    """Base class of the joint models with independent source tasks, each with a weight."""

    @property
    def weights(self) -> Tensor:
        """The weights of the source tasks in the target, a ``batch_shape x M`` tensor."""
        return self.conditional.kernel.task_weights.weights


class WeightedSourceGP(_IndependentSourcesGP):
    r"""WSGP [Tighineanu2022hierarchical]_: a joint GP with independent source tasks.

    .. code-block:: text

        k((x, i), (x', j)) = k_i(x, x') δ_ij + Σ_m w_m (δ_im + δ_it)(δ_jm + δ_jt) k_m(x, x')

    The target is task ``t``. Source task ``m`` is the sum of a private function and a function that
    task ``m`` shares with the target. ``w_m`` is the variance of the shared function divided by the
    variance of the private function. The covariance of the source data is block diagonal, so the
    cost grows linearly with the number of tasks. Use this model for a few source tasks with few
    evaluations, even if some of the tasks are irrelevant to the target. ``ScaMLGP`` is a faster,
    modular alternative.

    Args:
        normalize: Whether to replace ``k_m`` by ``k_m / (1 + w_m)`` in the formula. The covariance
            of source task ``m`` is ``k_m`` if true, and ``(1 + w_m) k_m`` if false.

    Raises:
        InputDataError: If data are invalid, or too large for a joint model.
        ValueError: If the input transform is not frozen, if ``outcome_scale`` is unknown, or if the
            number of kernels is wrong.

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
        prior: Sequence[SourceData] | Mapping[str, SourceData],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_modules: Sequence[Kernel] | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        normalize: bool = False,
        max_bytes: float = MAX_JOINT_BYTES,
        outcome_scale: OutcomeScale = "per_task",
        hyperparameters: HyperparameterChoice = "cautious",
        max_points: int | None = None,
    ) -> None:
        self._normalize = normalize
        modules = (likelihood, covar_modules, outcome_transform, input_transform)
        options = (task_feature, max_bytes, outcome_scale, hyperparameters)
        super().__init__(
            train_X, train_Y, prior, train_Yvar, *modules, *options, max_points=max_points
        )

    def _coregionalization(
        self, data_kernels: Sequence[Kernel], num_tasks: int, batch_shape: torch.Size
    ) -> CoregionalizationKernel:
        weights = TaskWeights(num_tasks - 1, batch_shape)
        return coregionalization.WeightedSourceKernel(data_kernels, weights, self._normalize)


class JointScaMLGP(_IndependentSourcesGP):
    r"""The joint GP behind ScaML-GP [Tighineanu2023scaml]_: weighted sources plus a residual.

    .. code-block:: text

        f_m ~ GP(0, k_m)        f_t = g_t + Σ_m w_m f_m        g_t ~ GP(0, k_t)

    Source task ``m`` has the function ``f_m`` and the weight ``w_m``. The target has the function
    ``f_t`` with the residual ``g_t``. With the same hyperparameters, the model equals ``ScaMLGP``.
    ``JointScaMLGP`` fits the hyperparameters of source tasks and target together. Use this model if
    source tasks have so few evaluations that target data improve the fits of source tasks. The
    covariance of the source data is block diagonal, so the cost grows linearly with the number of
    tasks.

    Args:
        covar_modules: One kernel for each task, with the target's residual kernel last. By default,
            scaled RBF kernels with a lengthscale for each input. The default kernels of the source
            tasks have the hyperpriors of ScaML-GP.

    Raises:
        InputDataError: If data are invalid, or too large for a joint model.
        ValueError: If the input transform is not frozen, if ``outcome_scale`` is unknown, or if the
            number of kernels is wrong.

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
        prior = weight_prior(self._hyperparameters, num_tasks - 1)
        weights = TaskWeights(num_tasks - 1, batch_shape, prior)
        return coregionalization.ScaMLKernel(data_kernels, weights)
