from __future__ import annotations

import unittest

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_transfer.kernels.task_kernels import (
    INDEPENDENCE,
    IntrinsicCoregionalizationKernel,
    LinearCoregionalizationKernel,
    start_factor,
)
from tests.kernels.tasks_and_points import TaskKernelTestCase


class TestLinearAsGPyTorchDoes(TaskKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, active_dims=None, **kwargs):
        shape = torch.Size() if batch_shape is None else batch_shape
        kernels = [RBFKernel(batch_shape=shape), MaternKernel(1.5, batch_shape=shape)]
        return LinearCoregionalizationKernel(
            kernels, self.num_tasks, rank=2, batch_shape=shape, active_dims=active_dims
        )


class TestIntrinsicAsGPyTorchDoes(TaskKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, active_dims=None, **kwargs):
        shape = torch.Size() if batch_shape is None else batch_shape
        return IntrinsicCoregionalizationKernel(
            RBFKernel(batch_shape=shape),
            self.num_tasks,
            batch_shape=shape,
            active_dims=active_dims,
        )


@pytest.mark.parametrize("num_tasks", [1, 2, 6])
def test_start_is_nearly_one_function(num_tasks):
    factor = start_factor(num_tasks)
    expected = torch.ones(num_tasks, num_tasks) + INDEPENDENCE * torch.eye(num_tasks)
    torch.testing.assert_close(factor @ factor.mT, expected)


@pytest.mark.parametrize("rank", [1, 2])
def test_start_of_low_rank_comes_close(rank):
    factor = start_factor(4, rank)
    assert factor.shape == (4, rank)
    assert torch.linalg.matrix_rank(factor @ factor.mT) == rank
    torch.testing.assert_close(factor @ factor.mT, torch.ones(4, 4), atol=0.2, rtol=0)


@pytest.mark.parametrize("rank", [0, 4, -1])
def test_impossible_ranks_are_refused(rank):
    with pytest.raises(ValueError, match=f"rank={rank} is no rank .* choose 1 to 3"):
        IntrinsicCoregionalizationKernel(RBFKernel(), 3, rank)


def test_linear_starts_with_unit_variance():
    kernel = LinearCoregionalizationKernel([RBFKernel() for _ in range(3)], 3)
    total = kernel.task_covariances().sum(dim=0)
    torch.testing.assert_close(total.diagonal(), torch.full((3,), 1.0 + INDEPENDENCE))


def test_rank_is_that_of_the_matrices():
    kernel = LinearCoregionalizationKernel([RBFKernel(), RBFKernel()], 4, rank=2)
    assert kernel.raw_factors.shape == (2, 4, 2)
    assert (torch.linalg.matrix_rank(kernel.task_covariances()) == 2).all()
