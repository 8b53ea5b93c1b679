import unittest

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch.testing import assert_close

from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.joint.kernels import (
    INDEPENDENCE,
    HierarchicalKernel,
    LinearCoregionalizationKernel,
    ScaMLKernel,
    WeightedSourceKernel,
    start_factor,
)
from tests.gp.tasks_and_points import TaskKernelTestCase


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
        kernels = [RBFKernel(batch_shape=shape)]
        return LinearCoregionalizationKernel(
            kernels, self.num_tasks, batch_shape=shape, active_dims=active_dims
        )


@pytest.mark.parametrize("num_tasks", [1, 2, 6])
def test_start_is_nearly_one_function(num_tasks):
    factor = start_factor(num_tasks)
    expected = torch.ones(num_tasks, num_tasks) + INDEPENDENCE * torch.eye(num_tasks)
    assert_close(factor @ factor.mT, expected)


@pytest.mark.parametrize("rank", [1, 2])
def test_start_of_low_rank_comes_close(rank):
    factor = start_factor(4, rank)
    assert factor.shape == (4, rank)
    assert torch.linalg.matrix_rank(factor @ factor.mT) == rank
    assert_close(factor @ factor.mT, torch.ones(4, 4), atol=0.2, rtol=0)


def test_linear_starts_with_unit_variance():
    kernel = LinearCoregionalizationKernel([RBFKernel() for _ in range(3)], 3)
    total = kernel.task_covariances().sum(dim=0)
    assert_close(total.diagonal(), torch.full((3,), 1.0 + INDEPENDENCE))


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


def build(kernel_class, num_tasks=3, batch_shape=None, **kwargs):
    shape = torch.Size() if batch_shape is None else batch_shape
    kernels = [RBFKernel(batch_shape=shape) for _ in range(num_tasks)]
    weights = TaskWeights(num_tasks - 1, shape)
    weights.weights = torch.tensor([0.5, 2.0])[: num_tasks - 1]
    return kernel_class(kernels, weights, **kwargs)


class TestWeightedSourceAsGPyTorchDoes(TaskKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, active_dims=None, **kwargs):
        return build(WeightedSourceKernel, 3, batch_shape, active_dims=active_dims)


class TestScaMLAsGPyTorchDoes(TaskKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, active_dims=None, **kwargs):
        return build(ScaMLKernel, 3, batch_shape, active_dims=active_dims)


def test_covariances_of_weighted_sources():
    expected = torch.tensor(
        [
            [[1.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.5]],
            [[0.0, 0.0, 0.0], [0.0, 3.0, 2.0], [0.0, 2.0, 2.0]],
            [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
        ]
    )
    assert_close(build(WeightedSourceKernel).task_covariances(), expected)
    scale = torch.tensor([1 / 1.5, 1 / 3, 1.0])[:, None, None]
    normalized = build(WeightedSourceKernel, normalize=True)
    assert_close(normalized.task_covariances(), expected * scale)


def test_covariances_of_scaml():
    expected = torch.tensor(
        [
            [[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.25]],
            [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]],
            [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
        ]
    )
    assert_close(build(ScaMLKernel).task_covariances(), expected)


def test_sources_are_independent():
    assert build(WeightedSourceKernel).sources_are_independent
    assert build(ScaMLKernel).sources_are_independent


def test_gradient_at_the_lower_bound_of_weights():
    kernel = build(WeightedSourceKernel)
    kernel.task_weights.weights = torch.tensor([1e-6, 1e-6])
    kernel.task_covariances().sum().backward()
    assert_close(kernel.task_weights.raw_weights.grad, torch.full((2,), 4.0), rtol=1e-4, atol=0)
