from __future__ import annotations

import unittest

import torch
from gpytorch.kernels import RBFKernel

from botorch_transfer.kernels.task_kernels import ScaMLKernel, WeightedSourceKernel
from botorch_transfer.kernels.weights import TaskWeights
from tests.kernels.tasks_and_points import TaskKernelTestCase


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
    torch.testing.assert_close(build(WeightedSourceKernel).task_covariances(), expected)
    scale = torch.tensor([1 / 1.5, 1 / 3, 1.0])[:, None, None]
    normalized = build(WeightedSourceKernel, normalize=True)
    torch.testing.assert_close(normalized.task_covariances(), expected * scale)


def test_covariances_of_scaml():
    expected = torch.tensor(
        [
            [[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.25]],
            [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]],
            [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
        ]
    )
    torch.testing.assert_close(build(ScaMLKernel).task_covariances(), expected)


def test_sources_are_independent():
    assert build(WeightedSourceKernel).sources_are_independent
    assert build(ScaMLKernel).sources_are_independent


def test_gradient_at_the_lower_bound_of_weights():
    kernel = build(WeightedSourceKernel)
    kernel.task_weights.weights = torch.tensor([1e-6, 1e-6])
    kernel.task_covariances().sum().backward()
    torch.testing.assert_close(
        kernel.task_weights.raw_weights.grad, torch.full((2,), 4.0), rtol=1e-4, atol=0
    )
