"""Inputs with a task column, for the tests of coregionalization kernels."""

from collections.abc import Sequence

import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from torch import Tensor


def task_column(tasks: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """A column that says which task each point is of."""
    column = [task for task, size in zip(tasks, sizes, strict=True) for _ in range(size)]
    return torch.tensor(column, dtype=torch.double).unsqueeze(-1)


class TaskKernelTestCase(BaseKernelTestCase):
    """GPyTorch's own tests of kernels, on inputs whose every column may serve as task column."""

    num_tasks = 3

    def create_data_no_batch(self) -> Tensor:
        return torch.randint(self.num_tasks, (50, 10)).float()

    def create_data_single_batch(self) -> Tensor:
        return torch.cat([torch.randn(2, 3, 1), torch.randint(self.num_tasks, (2, 3, 1))], dim=-1)

    def create_data_double_batch(self) -> Tensor:
        tasks = torch.randint(self.num_tasks, (3, 2, 50, 1))
        return torch.cat([torch.randn(3, 2, 50, 1), tasks], dim=-1)
