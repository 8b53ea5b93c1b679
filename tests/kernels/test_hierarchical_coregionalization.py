from __future__ import annotations

import unittest

import torch
from gpytorch.kernels import RBFKernel

from botorch_transfer.kernels.task_kernels import HierarchicalKernel
from tests.kernels.tasks_and_points import TaskKernelTestCase


class TestAsGPyTorchDoes(TaskKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, active_dims=None, **kwargs):
        shape = torch.Size() if batch_shape is None else batch_shape
        kernels = [RBFKernel(batch_shape=shape) for _ in range(self.num_tasks)]
        for number, kernel in enumerate(kernels):
            kernel.lengthscale = 0.5 + number
        return HierarchicalKernel(kernels, batch_shape=shape, active_dims=active_dims)


def test_task_covariances():
    kernel = HierarchicalKernel([RBFKernel() for _ in range(3)])
    expected = torch.tensor(
        [
            [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
            [[0, 0, 0], [0, 1, 1], [0, 1, 1]],
            [[0, 0, 0], [0, 0, 0], [0, 0, 1]],
        ]
    )
    assert torch.equal(kernel.task_covariances(), expected.float())
    assert not kernel.sources_are_independent


def test_has_no_hyperparameters_of_its_own():
    kernel = HierarchicalKernel([RBFKernel(), RBFKernel()])
    assert all(name.startswith("data_kernels.") for name, _ in kernel.named_parameters())


def test_one_source_is_a_block():
    assert HierarchicalKernel([RBFKernel(), RBFKernel()]).sources_are_independent
