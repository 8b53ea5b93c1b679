r"""Kernels over inputs and tasks: sums of data kernels, each shared by some of the tasks.

The linear model of coregionalization describes source and target tasks by one GP,

.. code-block:: text

    k((x, i), (x', j)) = Σ_ν [W_ν]_ij k_ν(x, x')        W_ν = F_ν F_νᵀ

and the joint models of [Tighineanu2022hierarchical]_ (Section 4) differ in their factors ``F_ν``
only. Read it for the evaluation of these kernels; the models' own are in ``task_kernels``.

.. [Tighineanu2022hierarchical]
    P. Tighineanu, K. Skubch, P. Baireuther, A. Reiss, F. Berkenkamp and J. Vinogradska. Transfer
    Learning with Gaussian Processes for Bayesian Optimization. AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self, cast

import gpytorch
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor
from torch.nn import ModuleList


@dataclass(frozen=True)
class TaskPoints:
    """Points of known tasks, sorted by task.

    Args:
        X: A ``batch_shape x n x d`` tensor of inputs.
        tasks: The tasks' indices, ascending.
        sizes: The number of points of each of these tasks; their sum is ``n``.
    """

    X: Tensor
    tasks: tuple[int, ...]
    sizes: tuple[int, ...]

    def rows(self, support: Sequence[bool]) -> slice:
        """The rows from the first to the last point whose task is in the support."""
        ends = [0, *accumulate(self.sizes)]
        inside = [rank for rank, task in enumerate(self.tasks) if support[task]]
        return slice(ends[inside[0]], ends[inside[-1] + 1]) if inside else slice(0, 0)

    def spread(self, values: Tensor, dim: int) -> Tensor:
        """Repeats each task's value at each of its points.

        Args:
            values: A tensor with one value for each task there is along ``dim``.
            dim: A negative dimension.

        Returns:
            The tensor with one value for each point instead; one value for all points, if they
            are of one task.
        """
        pieces = [values.narrow(dim, task, 1) for task in self.tasks]
        if len(pieces) == 1:
            return pieces[0]
        shape = [-1] * values.dim()
        spread = []
        for piece, size in zip(pieces, self.sizes, strict=True):
            shape[dim] = size
            spread.append(piece.expand(shape))
        return torch.cat(spread, dim=dim)


class CoregionalizationKernel(Kernel):
    r"""``Σ_ν [F_ν F_νᵀ]_ij k_ν(x, x')``, a kernel over inputs and tasks.

    The last column of its inputs is the index of a task: ``0, ..., M - 1`` are the source tasks,
    ``M`` is the target. Subclasses provide the factors.

    Args:
        data_kernels: The ``Q`` kernels ``k_ν`` over the inputs without task column.
        num_tasks: The number of tasks ``T``, target included.
        **kwargs: ``batch_shape``, that of the factors; and ``active_dims``, the columns that the
            kernel looks at, task column last.

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
        """The batch shape. GPyTorch's own property visits all modules, which slows small fits."""
        parts = [cast(Kernel, kernel).batch_shape for kernel in self.data_kernels]
        shapes = {self._batch_shape, *parts}
        return shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)

    @property
    @abstractmethod
    def support(self) -> list[list[bool]]:
        """``Q x T`` flags: whether the tasks' functions have a part with kernel ``k_ν``."""

    @abstractmethod
    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``batch_shape x Q x T x R`` tensor."""

    def task_covariances(self) -> Tensor:
        """The coregionalization matrices ``W_ν``, a ``batch_shape x Q x T x T`` tensor."""
        factors = self.task_factors()
        return factors @ factors.mT

    @property
    def sources_are_independent(self) -> bool:
        """Whether no two source tasks share a kernel: then their covariance is block diagonal."""
        return all(sum(tasks[:-1]) <= 1 for tasks in self.support)

    def covariance(self, points1: TaskPoints, points2: TaskPoints) -> Tensor:
        """Evaluates the kernel between points of known tasks.

        Data kernels are evaluated only where the tasks share them.

        Args:
            points1: ``batch_shape x n1`` points.
            points2: ``batch_shape x n2`` points.

        Returns:
            A ``batch_shape x n1 x n2`` tensor.
        """
        covariances = self.task_covariances()
        batch_shape = torch.broadcast_shapes(
            points1.X.shape[:-2], points2.X.shape[:-2], self.batch_shape
        )
        shape = (*batch_shape, points1.X.shape[-2], points2.X.shape[-2])
        total = points1.X.new_zeros(shape)
        for index, (kernel, support) in enumerate(
            zip(self.data_kernels, self.support, strict=True)
        ):
            rows, columns = points1.rows(support), points2.rows(support)
            if rows.start == rows.stop or columns.start == columns.stop:
                continue
            # One object, where the points are the same: kernels then know zero distances exactly.
            x1 = points1.X[..., rows, :]
            x2 = x1 if points1 is points2 else points2.X[..., columns, :]
            weights = points2.spread(points1.spread(covariances[..., index, :, :], -2), -1)
            weights = weights[
                ..., _part(weights.shape[-2], rows), _part(weights.shape[-1], columns)
            ]
            total[..., rows, columns] = total[..., rows, columns] + weights * evaluate(
                kernel, x1, x2
            )
        return total

    def variance(self, X: Tensor, task: int) -> Tensor:
        """Evaluates ``k((x, task), (x, task))``.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs.
            task: The task's index.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        covariances = self.task_covariances()[..., task, task]
        total = X.new_zeros(())
        for index, kernel in enumerate(self.data_kernels):
            if self.support[index][task]:
                variance = evaluate(kernel, X, X, diag=True)
                total = total + covariances[..., index, None] * variance
        return total

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel between points of any tasks.

        Args:
            x1: A ``batch_shape x n1 x (d + 1)`` tensor of inputs and, in the last column, tasks.
            x2: A ``batch_shape x n2 x (d + 1)`` tensor.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        one_hot1, one_hot2 = self._one_hot(x1), self._one_hot(x2)
        covariances = self.task_covariances()
        inputs1, inputs2 = x1[..., :-1], x2[..., :-1]
        if x1 is x2:
            inputs2 = inputs1
        total = inputs1.new_zeros(())
        for index, kernel in enumerate(self.data_kernels):
            rows = one_hot1 @ covariances[..., index, :, :]
            weights = (rows * one_hot2).sum(dim=-1) if diag else rows @ one_hot2.mT
            total = total + weights * evaluate(kernel, inputs1, inputs2, diag)
        return total

    def _one_hot(self, x: Tensor) -> Tensor:
        tasks = torch.arange(self.num_tasks, device=x.device)
        return (x[..., -1:].round() == tasks).to(x)

    def __getitem__(self, index: Any) -> Self:
        """Selects from the batch."""
        if len(self.batch_shape) == 0:
            return self
        index = index if isinstance(index, tuple) else (index,)
        kernels = [cast(Kernel, kernel)[index] for kernel in self.data_kernels]
        return self._with_kernels(kernels, lambda tensor: tensor[index])

    def expand_batch(self, *sizes: Any) -> Self:
        """Repeats the kernel along new batch dimensions.

        Args:
            *sizes: The new batch shape.

        Returns:
            A copy with that batch shape.
        """
        shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        kernels = [cast(Kernel, kernel).expand_batch(shape) for kernel in self.data_kernels]
        own = len(self._batch_shape)
        return self._with_kernels(
            kernels, lambda tensor: tensor.expand(*shape, *tensor.shape[own:])
        )

    def _with_kernels(self, kernels: Sequence[Kernel], change: Any) -> Self:
        """Copies the kernel, with other data kernels and a change of its own batch dimensions."""
        twin = deepcopy(self)
        twin.data_kernels = ModuleList(kernels)
        for name, parameter in self.named_parameters():
            if not name.startswith("data_kernels."):
                twin.get_parameter(name).data = change(parameter.data)
        twin._batch_shape = change(torch.empty(self._batch_shape)).shape
        return twin


def evaluate(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Evaluates a kernel at once, without GPyTorch's lazy tensors.

    Args:
        kernel: The kernel.
        x1: A ``batch_shape x n1 x d`` tensor of inputs.
        x2: A ``batch_shape x n2 x d`` tensor of inputs.
        diag: Whether to return ``k(x1_i, x2_i)`` only.

    Returns:
        A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
    """
    with gpytorch.settings.lazily_evaluate_kernels(False):
        return to_dense(kernel(x1, x2, diag=diag))


def _part(size: int, rows: slice) -> slice:
    """The same rows of a tensor that may hold one value for all of them."""
    return slice(None) if size == 1 else rows
