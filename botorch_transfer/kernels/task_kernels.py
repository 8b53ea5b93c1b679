r"""The kernels of the joint models: how the tasks share the data kernels.

Read it with :mod:`~botorch_transfer.kernels.coregionalization`, whose kernel all of them are: free
task covariances (MTGP, MTKGP), a hierarchy of tasks (HGP), and independent sources that are
weighted in the target (WSGP, ScaML).

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.kernels.coregionalization import CoregionalizationKernel
from botorch_transfer.kernels.weights import TaskWeights

INDEPENDENCE = 0.1
"""The ``ε`` of the start ``11ᵀ + εI``: every task's own share of its variance."""


class LinearCoregionalizationKernel(CoregionalizationKernel):
    r"""``Σ_ν [W_ν]_ij k_ν(x, x')`` with a free positive semi-definite ``W_ν`` for each kernel.

    This is the kernel of MTGP, the most flexible of the family, with ``O(T³)`` hyperparameters. The
    matrices start at ``(11ᵀ + εI) / Q``: all tasks alike, unit variance in all.

    Args:
        data_kernels: ``Q`` kernels of unit variance.
        num_tasks: The number of tasks ``T``, target included.
        rank: The number of columns of each factor; ``T`` if omitted.
        **kwargs: ``batch_shape``; and ``active_dims``, the columns that the kernel looks at, task
            column last.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.

    Example:
        >>> kernel = LinearCoregionalizationKernel([RBFKernel(), MaternKernel()], num_tasks=2)
        >>> kernel.task_covariances().shape
        torch.Size([2, 2, 2])
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
        """``Q x T`` flags: every kernel is every task's."""
        return [[True] * self.num_tasks for _ in self.data_kernels]

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``batch_shape x Q x T x rank`` tensor."""
        return self.raw_factors


class IntrinsicCoregionalizationKernel(LinearCoregionalizationKernel):
    r"""``W_ij k(x, x')`` with one free positive semi-definite matrix.

    This is the kernel of MTKGP, and of BoTorch's ``MultiTaskGP``. The matrix starts at
    ``11ᵀ + εI``.

    Args:
        data_kernel: A kernel of unit variance.
        num_tasks: The number of tasks ``T``, target included.
        rank: The number of columns of the factor; ``T`` if omitted.
        **kwargs: ``batch_shape``; and ``active_dims``, the columns that the kernel looks at, task
            column last.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.

    Example:
        >>> IntrinsicCoregionalizationKernel(RBFKernel(), num_tasks=2).task_covariances()
        tensor([[[1.1000, 1.0000],
                 [1.0000, 1.1000]]], grad_fn=<...>)
    """

    def __init__(
        self, data_kernel: Kernel, num_tasks: int, rank: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__([data_kernel], num_tasks, rank, **kwargs)


def start_factor(num_tasks: int, rank: int | None = None) -> Tensor:
    """A factor of ``11ᵀ + εI``, to which a factor of lower rank comes close.

    The full factor is the symmetric root: fits then treat all tasks alike. One of lower rank has
    the first columns of the Cholesky factor.

    Args:
        num_tasks: The number of tasks ``T``.
        rank: The number of columns; ``T`` if omitted.

    Returns:
        A ``T x rank`` tensor.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.
    """
    rank = num_tasks if rank is None else rank
    if not 1 <= rank <= num_tasks:
        raise ValueError(
            f"rank={rank} is no rank of a matrix between {num_tasks} tasks (target included): "
            f"choose 1 to {num_tasks}."
        )
    ones, eye = torch.ones(num_tasks, num_tasks), torch.eye(num_tasks)
    if rank < num_tasks:
        return torch.linalg.cholesky(ones + INDEPENDENCE * eye)[:, :rank]
    root = INDEPENDENCE**0.5
    return root * eye + ((num_tasks + INDEPENDENCE) ** 0.5 - root) / num_tasks * ones


class HierarchicalKernel(CoregionalizationKernel):
    r"""``Σ_{ν ≤ min(i, j)} k_ν(x, x')``: every task adds to what the tasks before it have.

    This is the kernel of HGP, where ``[W_ν]_ij = 1`` if ``i ≥ ν`` and ``j ≥ ν``, else ``0``. It has
    no hyperparameters besides those of its data kernels.

    Args:
        data_kernels: A kernel for each task, in their order, target last.
        **kwargs: ``batch_shape``; and ``active_dims``, the columns that the kernel looks at, task
            column last.

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
        """``Q x T`` flags: kernel ``ν`` is that of the tasks from ``ν`` on."""
        tasks = range(self.num_tasks)
        return [[task >= index for task in tasks] for index in tasks]

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``T x T x 1`` tensor of zeros and ones."""
        ones = torch.ones(self.num_tasks, self.num_tasks, dtype=self.dtype, device=self.device)
        return ones.triu().unsqueeze(-1)


class _IndependentSourcesKernel(CoregionalizationKernel):
    """A kernel for each task; the target shares those of its sources, these share none.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        **kwargs: ``active_dims``, the columns that the kernel looks at, task column last.
    """

    def __init__(
        self, data_kernels: Sequence[Kernel], task_weights: TaskWeights, **kwargs: Any
    ) -> None:
        kwargs["batch_shape"] = task_weights.batch_shape
        super().__init__(data_kernels, len(data_kernels), **kwargs)
        self.task_weights = task_weights

    @property
    def support(self) -> list[list[bool]]:
        """``Q x T`` flags: a source's kernel is that source's and the target's."""
        target = self.num_tasks - 1
        tasks = range(self.num_tasks)
        return [[task in (index, target) for task in tasks] for index in tasks]

    def _factors(self, own: Tensor, targets: Tensor) -> Tensor:
        """Puts together factors.

        Args:
            own: A ``batch_shape x M x R`` tensor: each source's row in its kernel's factor.
            targets: A ``batch_shape x M x R`` tensor: the target's row there.

        Returns:
            A ``batch_shape x T x T x R`` tensor; the target's own kernel has factor one.
        """
        *batch_shape, num_sources, rank = own.shape
        factors = own.new_zeros(*batch_shape, num_sources + 1, num_sources + 1, rank)
        factors[..., -1, -1, 0] = 1.0
        eye = torch.eye(num_sources, dtype=own.dtype, device=own.device)
        factors[..., :-1, :-1, :] = own.unsqueeze(-2) * eye.unsqueeze(-1)
        factors[..., :-1, -1, :] = targets
        return factors


class WeightedSourceKernel(_IndependentSourcesKernel):
    r"""``k_i(x, x') δ_ij + Σ_ν w_ν (δ_iν + δ_it)(δ_jν + δ_jt) k_ν(x, x')``, the kernel of WSGP.

    Each source task is a function of its own, plus ``√w_ν`` times a function with the same kernel
    that it shares with the target.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        normalize: Whether to divide ``k_ν`` by ``1 + w_ν``, so that it is the source task's own
            covariance whatever its weight.
        **kwargs: ``active_dims``, the columns that the kernel looks at, task column last.

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

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``batch_shape x T x T x 2`` tensor."""
        weights = self.task_weights.weights
        scale = 1 / (1 + weights) if self.normalize else torch.ones_like(weights)
        alone, shared = scale.sqrt(), (weights * scale).sqrt()
        own = torch.stack([alone, shared], dim=-1)
        return self._factors(own, torch.stack([torch.zeros_like(alone), shared], dim=-1))


class ScaMLKernel(_IndependentSourcesKernel):
    r"""``Cov(f_i, f_j)`` of independent sources ``f_m`` and a target ``f_t + Σ_m w_m f_m``.

    This is the kernel from which ScaML-GP follows by conditioning on the sources, Eq. (3) to (5) of
    [Tighineanu2023scaml]_: ``W_m`` is ``1`` at ``(m, m)``, ``w_m`` at ``(m, t)`` and ``w_m²`` at
    ``(t, t)``.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        **kwargs: ``active_dims``, the columns that the kernel looks at, task column last.

    Example:
        >>> kernel = ScaMLKernel([RBFKernel() for _ in range(3)], TaskWeights(2))
        >>> kernel.task_covariances()[0]
        tensor([[1.0000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000],
                [0.5000, 0.0000, 0.2500]], grad_fn=<...>)
    """

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``batch_shape x T x T x 1`` tensor."""
        weights = self.task_weights.weights.unsqueeze(-1)
        return self._factors(torch.ones_like(weights), weights)
