"""Coregionalization kernels whose task covariances are free matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.kernels.coregionalization import CoregionalizationKernel

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
        batch_shape: The batch shape.
        active_dims: The columns that the kernel looks at, task column last.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.

    Example:
        >>> kernel = LinearCoregionalizationKernel([RBFKernel(), MaternKernel()], num_tasks=2)
        >>> kernel.task_covariances().shape
        torch.Size([2, 2, 2])
    """

    raw_factors: Parameter

    def __init__(
        self,
        data_kernels: Sequence[Kernel],
        num_tasks: int,
        rank: int | None = None,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(data_kernels, num_tasks, batch_shape, active_dims)
        count = len(self.data_kernels)
        start = start_factor(num_tasks, rank) / count**0.5
        shape = (*batch_shape, count, *start.shape)
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
        batch_shape: The batch shape.
        active_dims: The columns that the kernel looks at, task column last.

    Raises:
        ValueError: If the rank is not between 1 and the number of tasks.

    Example:
        >>> IntrinsicCoregionalizationKernel(RBFKernel(), num_tasks=2).task_covariances()
        tensor([[[1.1000, 1.0000],
                 [1.0000, 1.1000]]], grad_fn=<...>)
    """

    def __init__(
        self,
        data_kernel: Kernel,
        num_tasks: int,
        rank: int | None = None,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__([data_kernel], num_tasks, rank, batch_shape, active_dims)


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
