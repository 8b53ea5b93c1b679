"""The coregionalization kernel of a hierarchy of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_transfer.kernels.coregionalization import CoregionalizationKernel


class HierarchicalKernel(CoregionalizationKernel):
    r"""``Σ_{ν ≤ min(i, j)} k_ν(x, x')``: every task adds to what the tasks before it have.

    This is the kernel of HGP, where ``[W_ν]_ij = 1`` if ``i ≥ ν`` and ``j ≥ ν``, else ``0``. It has
    no hyperparameters besides those of its data kernels.

    Args:
        data_kernels: A kernel for each task, in their order, target last.
        batch_shape: The batch shape.
        active_dims: The columns that the kernel looks at, task column last.

    Example:
        >>> kernel = HierarchicalKernel([RBFKernel(), RBFKernel()])
        >>> kernel.task_covariances()[1]
        tensor([[0., 0.],
                [0., 1.]])
    """

    def __init__(
        self,
        data_kernels: Sequence[Kernel],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(data_kernels, len(data_kernels), batch_shape, active_dims)

    @property
    def support(self) -> list[list[bool]]:
        """``Q x T`` flags: kernel ``ν`` is that of the tasks from ``ν`` on."""
        tasks = range(self.num_tasks)
        return [[task >= index for task in tasks] for index in tasks]

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``T x T x 1`` tensor of zeros and ones."""
        ones = torch.ones(self.num_tasks, self.num_tasks, dtype=self.dtype, device=self.device)
        return ones.triu().unsqueeze(-1)
