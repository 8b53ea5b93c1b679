r"""Kernels over inputs and tasks: sums of kernels over inputs, each shared by some tasks.

The linear model of coregionalization describes source and target tasks by one GP. The covariance
between input ``x`` of task ``i`` and input ``x'`` of task ``j`` is

.. code-block:: text

    k((x, i), (x', j)) = Σ_ν [W_ν]_ij k_ν(x, x')        W_ν = F_ν F_νᵀ

The joint models of [Tighineanu2022hierarchical]_ (Section 4) differ only in their factors ``F_ν``:
free task covariances (MTGP, MTKGP), a hierarchy of tasks (HGP), and independent sources that are
weighted in the target (WSGP, ScaML).

A *data kernel* ``k_ν`` is a kernel over the inputs only. A task *shares* the data kernel ``k_ν`` if
the task's row of ``F_ν`` is not zero. The property ``support`` has one boolean for each pair of a
data kernel and a task: whether the task shares the kernel.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self, cast

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter

from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.gp.expansion import evaluate


def rows_of_tasks(sizes: Sequence[int]) -> list[slice]:
    """Returns the slice of each task's rows in a tensor whose rows are sorted by task."""
    return [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


@dataclass(frozen=True)
class TaskPoints:
    """Inputs of one or more tasks, sorted by task.

    Args:
        X: A ``batch_shape x n x d`` tensor of inputs.
        tasks: The indices of the tasks, ascending.
        sizes: The number of points of each of these tasks, with the sum ``n``.
    """

    X: Tensor
    tasks: tuple[int, ...]
    sizes: tuple[int, ...]

    def one_hot(self, num_tasks: int) -> Tensor:
        """Returns the one-hot encoding of each point's task, an ``n x num_tasks`` tensor."""
        eye = torch.eye(num_tasks, dtype=self.X.dtype, device=self.X.device)
        tasks = zip(self.tasks, self.sizes, strict=True)
        return torch.cat([eye[task].expand(size, -1) for task, size in tasks])


class CoregionalizationKernel(Kernel):
    r"""Base class of kernels over inputs and tasks: ``Σ_ν [F_ν F_νᵀ]_ij k_ν(x, x')``.

    This is the covariance between input ``x`` of task ``i`` and input ``x'`` of task ``j``. The
    last input column is the task index: ``0, ..., M - 1`` are the source tasks, and ``M`` is the
    target. Subclasses provide the factors ``F_ν``, which have one row for each task.

    Args:
        data_kernels: The ``Q`` kernels ``k_ν`` over the inputs, without the task column.
        num_tasks: The number of tasks ``T``, target included.
        **kwargs: ``batch_shape``, the batch shape of the factors and of the data kernels; and
            ``active_dims``, the input columns that the kernel uses, with the task column last.

    Example:
        >>> class SharedKernel(CoregionalizationKernel):
        ...     @property
        ...     def support(self):
        ...         return [[True] * self.num_tasks]
        ...     def task_factors(self):
        ...         return torch.ones(1, self.num_tasks, 1)
        >>> kernel = SharedKernel([RBFKernel()], num_tasks=2)
        >>> kernel(torch.tensor([[0.3, 0.0], [0.3, 1.0]])).to_dense()
        tensor([[1., 1.],
                [1., 1.]], grad_fn=<...>)
    """

    has_lengthscale = False
    data_kernels: ModuleList

    def __init__(self, data_kernels: Sequence[Kernel], num_tasks: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_tasks = num_tasks
        self.data_kernels = ModuleList(data_kernels)

    @Kernel.batch_shape.getter
    def batch_shape(self) -> torch.Size:
        """The batch shape of the hyperparameters.

        This property replaces GPyTorch's property, which visits all modules and slows small fits.
        """
        return self._batch_shape

    @property
    @abstractmethod
    def support(self) -> list[list[bool]]:
        """For each kernel over inputs, one boolean per task: whether the task uses the kernel."""

    @property
    def fitted_param(self) -> tuple[Module, str] | None:
        """The location of the fitted hyperparameter that determines the task factors.

        A pair: the module that holds the hyperparameter, and the name of the module's property that
        returns the hyperparameter. ``None`` if the factors are constant.
        """
        return None

    @abstractmethod
    def task_factors(self, *fitted: Tensor) -> Tensor:
        """Computes the factors ``F_ν`` of the task covariances ``W_ν = F_ν F_νᵀ``.

        Args:
            *fitted: Optionally, a value that replaces the current value of the hyperparameter
                at :attr:`fitted_param`.

        Returns:
            A ``batch_shape x Q x T x R`` tensor with ``R`` columns for each of the ``Q`` kernels.
        """

    def task_covariances(self, *fitted: Tensor) -> Tensor:
        """Computes the coregionalization matrices ``W_ν``, one for each kernel over inputs.

        Args:
            *fitted: Optionally, a value that replaces the current value of the hyperparameter
                at :attr:`fitted_param`.

        Returns:
            A ``batch_shape x Q x T x T`` tensor.
        """
        factors = self.task_factors(*fitted)
        return factors @ factors.mT

    @property
    def sources_are_independent(self) -> bool:
        """Whether all source tasks are uncorrelated, because no two of them share a kernel."""
        return all(sum(tasks[:-1]) <= 1 for tasks in self.support)

    def covariance(self, points1: TaskPoints, points2: TaskPoints) -> Tensor:
        """Evaluates the kernel between points that are sorted by task.

        Each kernel over inputs is evaluated only for the tasks that use this kernel.

        Args:
            points1: Points with a ``batch_shape x n1 x d`` tensor of inputs.
            points2: Points with a ``batch_shape x n2 x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n1 x n2`` tensor.
        """
        covariances = self.task_covariances()
        tasks1, tasks2 = (points.one_hot(self.num_tasks) for points in (points1, points2))
        shapes = (points.X.shape[:-2] for points in (points1, points2))
        batch_shape = torch.broadcast_shapes(*shapes, self.batch_shape)
        total = points1.X.new_zeros(*batch_shape, len(tasks1), len(tasks2))
        parts = zip(self.data_kernels, self.support, covariances.unbind(dim=-3), strict=True)
        for kernel, support, matrix in parts:
            if all(p.X.numel() and any(support[i] for i in p.tasks) for p in (points1, points2)):
                weights = tasks1 @ matrix @ tasks2.mT
                total = total + weights * evaluate(kernel, points1.X, points2.X)
        return total

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel between points whose last column is the task index.

        Args:
            x1: A ``batch_shape x n1 x (d + 1)`` tensor: inputs, then the task index.
            x2: A ``batch_shape x n2 x (d + 1)`` tensor: inputs, then the task index.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        one_hot1, one_hot2 = self._one_hot(x1), self._one_hot(x2)
        covariances = self.task_covariances()
        inputs1 = x1[..., :-1]
        inputs2 = inputs1 if x1 is x2 else x2[..., :-1]
        total = inputs1.new_zeros(())
        for kernel, matrix in zip(self.data_kernels, covariances.unbind(dim=-3), strict=True):
            rows = one_hot1 @ matrix
            weights = (rows * one_hot2).sum(dim=-1) if diag else rows @ one_hot2.mT
            total = total + weights * evaluate(kernel, inputs1, inputs2, diag)
        return total

    def _one_hot(self, x: Tensor) -> Tensor:
        tasks = torch.arange(self.num_tasks, device=x.device)
        return (x[..., -1:].round() == tasks).to(x)

    def __getitem__(self, index: Any) -> Self:
        """Returns the kernel for the models that ``index`` selects from a batch."""
        if len(self.batch_shape) == 0:
            return self
        kernels = [cast(Kernel, kernel)[index] for kernel in self.data_kernels]
        return self._with_kernels(kernels, lambda tensor: tensor[index])

    def expand_batch(self, *sizes: Any) -> Self:
        """Repeats the kernel along new batch dimensions.

        Args:
            *sizes: The new batch shape.

        Returns:
            A copy with the new batch shape.
        """
        shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        kernels = [cast(Kernel, kernel).expand_batch(shape) for kernel in self.data_kernels]
        own = len(self._batch_shape)
        return self._with_kernels(
            kernels, lambda tensor: tensor.expand(*shape, *tensor.shape[own:])
        )

    def _with_kernels(self, kernels: Sequence[Kernel], change: Any) -> Self:
        """Returns a copy with new data kernels.

        The function ``change`` takes a parameter and returns the copy's parameter. It is applied
        to all parameters except the data kernels' parameters.
        """
        twin = deepcopy(self)
        twin.data_kernels = ModuleList(kernels)
        for name, parameter in self.named_parameters():
            if not name.startswith("data_kernels."):
                twin.get_parameter(name).data = change(parameter.data)
        twin._batch_shape = change(torch.empty(self._batch_shape)).shape
        return twin


#: The ``ε`` of the initial matrix ``11ᵀ + εI``: the part of each task's variance that the task does
#: not share with any other task.
INDEPENDENCE = 0.1


class LinearCoregionalizationKernel(CoregionalizationKernel):
    r"""Kernel with a free task covariance for each data kernel: ``Σ_ν [W_ν]_ij k_ν(x, x')``.

    The matrices ``W_ν`` are positive semi-definite. This is the kernel of MTGP, the most flexible
    joint model, with ``O(T³)`` hyperparameters. With a single data kernel, it is the kernel of
    MTKGP and of BoTorch's ``MultiTaskGP``. The initial matrices are ``(11ᵀ + εI) / Q``, so that all
    tasks are similar and have about unit variance.

    Args:
        data_kernels: ``Q`` kernels of unit variance.
        num_tasks: The number of tasks ``T``, target included.
        rank: The number of columns of each factor; ``T`` if omitted.
        **kwargs: ``batch_shape``; and ``active_dims``, the input columns that the kernel uses, with
            the task column last.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.

    Example:
        >>> kernel = LinearCoregionalizationKernel([RBFKernel(), MaternKernel()], num_tasks=2)
        >>> kernel.task_covariances().shape
        torch.Size([2, 2, 2])
        >>> LinearCoregionalizationKernel([RBFKernel()], num_tasks=2).task_covariances()
        tensor([[[1.1000, 1.0000],
                 [1.0000, 1.1000]]], grad_fn=<...>)
    """

    raw_factors: Parameter

    def __init__(
        self, data_kernels: Sequence[Kernel], num_tasks: int, rank: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(data_kernels, num_tasks, **kwargs)
        count = len(self.data_kernels)
        start = start_factor(num_tasks, rank) / count**0.5
        shape = (*self._batch_shape, count, *start.shape)
        self.register_parameter("raw_factors", Parameter(start.expand(shape).clone()))

    @property
    def support(self) -> list[list[bool]]:
        """For each kernel over inputs, one boolean per task: always ``True``."""
        return [[True] * self.num_tasks for _ in self.data_kernels]

    @property
    def factors(self) -> Tensor:
        """The factors ``F_ν`` of the matrices ``W_ν``, a ``batch_shape x Q x T x rank`` tensor."""
        return self.raw_factors

    @factors.setter
    def factors(self, value: Tensor) -> None:
        self.initialize(raw_factors=value)

    @property
    def fitted_param(self) -> tuple[Module, str]:
        """The location of the fitted hyperparameter: the property ``factors`` of this kernel."""
        return self, "factors"

    def task_factors(self, *fitted: Tensor) -> Tensor:
        """Returns the factors ``F_ν`` of ``W_ν``, a ``batch_shape x Q x T x rank`` tensor."""
        return fitted[0] if fitted else self.factors


def start_factor(num_tasks: int, rank: int | None = None) -> Tensor:
    """Returns the initial factor ``F`` of a task covariance ``F Fᵀ ≈ 11ᵀ + εI``.

    If ``rank = T``, ``F`` is the symmetric square root of ``11ᵀ + εI``, so that fits treat all
    tasks alike. If ``rank < T``, ``F`` consists of the first columns of this matrix's Cholesky
    factor.

    Args:
        num_tasks: The number of tasks ``T``, target included.
        rank: The number of columns; ``T`` if omitted.

    Returns:
        A ``T x rank`` tensor.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.
    """
    rank = num_tasks if rank is None else rank
    if not 1 <= rank <= num_tasks:
        text = f"rank={rank} is out of range for {num_tasks} tasks (target included)"
        raise ValueError(f"{text}: choose a rank from 1 to {num_tasks}.")
    ones, eye = torch.ones(num_tasks, num_tasks), torch.eye(num_tasks)
    if rank < num_tasks:
        return torch.linalg.cholesky(ones + INDEPENDENCE * eye)[:, :rank]
    root = INDEPENDENCE**0.5
    return root * eye + ((num_tasks + INDEPENDENCE) ** 0.5 - root) / num_tasks * ones


class HierarchicalKernel(CoregionalizationKernel):
    r"""Kernel of ordered tasks: each task adds a new function to the previous task's function.

    The kernel is ``Σ_{ν ≤ min(i, j)} k_ν(x, x')`` for tasks ``i`` and ``j``. This is the kernel of
    HGP, where ``[W_ν]_ij = 1`` if ``i ≥ ν`` and ``j ≥ ν``, else ``0``. Only the data kernels have
    hyperparameters.

    Args:
        data_kernels: A kernel for each task, in the order of the tasks, target last.
        **kwargs: ``batch_shape``; and ``active_dims``, the input columns that the kernel uses, with
            the task column last.

    Example:
        >>> kernel = HierarchicalKernel([RBFKernel(), RBFKernel()])
        >>> kernel.task_covariances()[1]
        tensor([[0., 0.],
                [0., 1.]])
    """

    def __init__(self, data_kernels: Sequence[Kernel], **kwargs: Any) -> None:
        super().__init__(data_kernels, len(data_kernels), **kwargs)

    @property
    def support(self) -> list[list[bool]]:
        """For each kernel over inputs, one boolean per task: whether the task uses the kernel.

        Task ``i`` uses the kernels of task ``i`` and of all earlier tasks.
        """
        tasks = range(self.num_tasks)
        return [[task >= index for task in tasks] for index in tasks]

    def task_factors(self, *fitted: Tensor) -> Tensor:
        """Returns the constant task factors ``F_ν``, a ``T x T x 1`` tensor of zeros and ones."""
        ones = torch.ones(self.num_tasks, self.num_tasks, dtype=self.dtype, device=self.device)
        return ones.triu().unsqueeze(-1)


class IndependentSourcesKernel(CoregionalizationKernel):
    """Base class of kernels with independent source tasks, which correlate only with the target.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        **kwargs: ``active_dims``, the input columns that the kernel uses, with the task column
            last.
    """

    def __init__(
        self, data_kernels: Sequence[Kernel], task_weights: TaskWeights, **kwargs: Any
    ) -> None:
        kwargs["batch_shape"] = task_weights.batch_shape
        super().__init__(data_kernels, len(data_kernels), **kwargs)
        self.task_weights = task_weights

    @property
    def support(self) -> list[list[bool]]:
        """For each kernel over inputs, one boolean per task: whether the task uses the kernel.

        A source task uses only its own kernel. The target uses all kernels.
        """
        target = self.num_tasks - 1
        tasks = range(self.num_tasks)
        return [[task in (index, target) for task in tasks] for index in tasks]

    @property
    def fitted_param(self) -> tuple[Module, str]:
        """The location of the fitted hyperparameter: property ``weights`` of ``task_weights``."""
        return self.task_weights, "weights"

    def _factors(self, own: Tensor, targets: Tensor) -> Tensor:
        """Builds the task factors ``F_ν`` of all kernels. Rows not described below are zero.

        Args:
            own: A ``batch_shape x M x R`` tensor: the row of source task ``m`` in the factor
                ``F_m``, for each ``m``.
            targets: A ``batch_shape x M x R`` tensor: the target's row in the factor ``F_m``, for
                each ``m``.

        Returns:
            A ``batch_shape x T x T x R`` tensor. In the factor of the target's own kernel, only the
            first element of the target's row is one, and all other elements are zero.
        """
        *batch_shape, num_sources, rank = own.shape
        factors = own.new_zeros(*batch_shape, num_sources + 1, num_sources + 1, rank)
        factors[..., -1, -1, 0] = 1.0
        eye = torch.eye(num_sources, dtype=own.dtype, device=own.device)
        factors[..., :-1, :-1, :] = own.unsqueeze(-2) * eye.unsqueeze(-1)
        factors[..., :-1, -1, :] = targets
        return factors


class WeightedSourceKernel(IndependentSourcesKernel):
    r"""Kernel of WSGP: source tasks are independent, and each shares a function with the target.

    .. code-block:: text

        k((x, i), (x', j)) = k_i(x, x') δ_ij + Σ_ν w_ν (δ_iν + δ_it)(δ_jν + δ_jt) k_ν(x, x')

    Source task ``ν`` is the sum of a private function and of ``√w_ν`` times a function that task
    ``ν`` shares with the target. Both functions have the kernel ``k_ν``. The target is task ``t``.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        normalize: Whether to replace ``k_ν`` by ``k_ν / (1 + w_ν)`` in the formula. The covariance
            of source task ``ν`` is ``k_ν`` if true, and ``(1 + w_ν) k_ν`` if false.
        **kwargs: ``active_dims``, the input columns that the kernel uses, with the task column
            last.

    Example:
        >>> kernel = WeightedSourceKernel([RBFKernel(), RBFKernel()], TaskWeights(1))
        >>> kernel.task_covariances()[0]
        tensor([[2., 1.],
                [1., 1.]], grad_fn=<...>)
    """

    def __init__(
        self,
        data_kernels: Sequence[Kernel],
        task_weights: TaskWeights,
        normalize: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_kernels, task_weights, **kwargs)
        self.normalize = normalize

    def task_factors(self, *fitted: Tensor) -> Tensor:
        """Computes the factors ``F_ν`` of ``W_ν``, a ``batch_shape x T x T x 2`` tensor."""
        (weights,) = fitted or (self.task_weights.weights,)
        scale = 1 / (1 + weights) if self.normalize else torch.ones_like(weights)
        alone, shared = scale.sqrt(), (weights * scale).sqrt()
        own = torch.stack([alone, shared], dim=-1)
        return self._factors(own, torch.stack([torch.zeros_like(alone), shared], dim=-1))


class ScaMLKernel(IndependentSourcesKernel):
    r"""Kernel of independent source functions ``f_m`` and a target ``f_t + Σ_m w_m f_m``.

    A GP with this kernel, conditioned on the source data, is ScaML-GP. The kernel is Eq. (5) of
    [Tighineanu2023scaml]_. The task covariance ``W_m`` of source task ``m`` is ``1`` at ``(m, m)``,
    ``w_m`` at ``(m, t)`` and ``w_m²`` at ``(t, t)``, where ``t`` is the target.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        **kwargs: ``active_dims``, the input columns that the kernel uses, with the task column
            last.

    Example:
        >>> kernel = ScaMLKernel([RBFKernel() for _ in range(3)], TaskWeights(2))
        >>> kernel.task_covariances()[0]
        tensor([[1.0000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000],
                [0.5000, 0.0000, 0.2500]], grad_fn=<...>)
    """

    def task_factors(self, *fitted: Tensor) -> Tensor:
        """Computes the factors ``F_ν`` of ``W_ν``, a ``batch_shape x T x T x 1`` tensor."""
        (weights,) = fitted or (self.task_weights.weights,)
        weights = weights.unsqueeze(-1)
        return self._factors(torch.ones_like(weights), weights)
