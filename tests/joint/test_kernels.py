"""What all coregionalization kernels share."""

import unittest

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch.testing import assert_close

from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.joint import kernels as coregionalization
from botorch_transfer.joint.kernels import (
    INDEPENDENCE,
    HierarchicalKernel,
    LinearCoregionalizationKernel,
    ScaMLKernel,
    TaskPoints,
    WeightedSourceKernel,
    evaluate,
    start_factor,
)
from tests.gp.tasks_and_points import TaskKernelTestCase, task_column

T = 4


def data_kernels(batch_shape=()):
    kernels = [RBFKernel(batch_shape=torch.Size(batch_shape)) for _ in range(T)]
    for number, kernel in enumerate(kernels):
        kernel.lengthscale = 0.3 + 0.2 * number
    return kernels


def weights(batch_shape=()):
    values = TaskWeights(T - 1, torch.Size(batch_shape))
    values.weights = torch.linspace(0.2, 1.5, T - 1)
    return values


KERNELS = {
    "linear": lambda b=(): LinearCoregionalizationKernel(
        data_kernels(b), T, batch_shape=torch.Size(b)
    ),
    "hierarchical": lambda b=(): HierarchicalKernel(data_kernels(b), batch_shape=torch.Size(b)),
    "weighted": lambda b=(): WeightedSourceKernel(data_kernels(b), weights(b)),
    "ScaML": lambda b=(): ScaMLKernel(data_kernels(b), weights(b)),
}


@pytest.fixture(params=KERNELS)
def make(request):
    return KERNELS[request.param]


def plain(kernel, x1, x2):
    """The sum of the definition, pair by pair."""
    covariances = kernel.task_covariances()
    total = torch.zeros(len(x1), len(x2), dtype=torch.double)
    for row, point1 in enumerate(x1):
        for column, point2 in enumerate(x2):
            i, j = int(point1[-1]), int(point2[-1])
            for index, data_kernel in enumerate(kernel.data_kernels):
                r2 = ((point1 - point2)[:-1] / data_kernel.lengthscale).square().sum()
                total[row, column] += covariances[index, i, j] * torch.exp(-0.5 * r2)
    return total


def points(n, seed, tasks=None):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.double)
    tasks = torch.randint(T, (n,), generator=generator) if tasks is None else torch.tensor(tasks)
    return torch.cat([X, tasks.unsqueeze(-1).to(X)], dim=-1)


def test_equals_its_definition(make):
    kernel = make().double()
    x1, x2 = points(7, 0), points(5, 1)
    torch.testing.assert_close(kernel(x1, x2).to_dense(), plain(kernel, x1, x2))
    torch.testing.assert_close(kernel(x1).to_dense(), plain(kernel, x1, x1))
    torch.testing.assert_close(kernel(x1, diag=True), plain(kernel, x1, x1).diagonal())
    torch.testing.assert_close(kernel(x1[:5], x2, diag=True), plain(kernel, x1[:5], x2).diagonal())


@pytest.mark.parametrize(
    ("tasks1", "tasks2"),
    [((0, 1, 2), (3,)), ((1,), (1,)), ((0,), (2,)), ((0, 2, 3), (1, 3)), ((3,), (0, 1, 2, 3))],
)
def test_blocks_of_known_tasks(make, tasks1, tasks2):
    kernel = make().double()
    blocks, columns = [], []
    for tasks, seed in ((tasks1, 0), (tasks2, 1)):
        sizes = tuple(2 + task for task in tasks)
        column = [task for task, size in zip(tasks, sizes, strict=True) for _ in range(size)]
        x = points(sum(sizes), seed, column)
        blocks.append(TaskPoints(x[:, :-1], tasks, sizes))
        columns.append(x)
    torch.testing.assert_close(kernel.covariance(*blocks), plain(kernel, *columns))
    same = kernel.covariance(blocks[0], blocks[0])
    torch.testing.assert_close(same, plain(kernel, columns[0], columns[0]))


def evaluated_sizes(monkeypatch):
    """The numbers of rows of all data kernels' matrices from now on."""
    sizes = []

    def recorded(kernel, x1, x2, diag=False):
        sizes.append(x1.shape[-2])
        return evaluate(kernel, x1, x2, diag)

    monkeypatch.setattr(coregionalization, "evaluate", recorded)
    return sizes


def test_blocks_skip_kernels_that_no_task_of_theirs_has(monkeypatch):
    kernel = ScaMLKernel(data_kernels(), weights())
    sizes = evaluated_sizes(monkeypatch)
    first = TaskPoints(torch.rand(3, 2), (0,), (3,))
    second = TaskPoints(torch.rand(4, 2), (1,), (4,))
    assert not kernel.covariance(first, second).any()
    assert sizes == []


def test_support_is_where_covariances_are(make):
    kernel = make()
    support = torch.tensor(kernel.support)
    expected = support.unsqueeze(-1) & support.unsqueeze(-2)
    assert torch.equal(kernel.task_covariances() != 0, expected)


def test_batches_of_hyperparameters(make):
    kernel = make((3,)).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    x1, x2 = points(5, 0), points(4, 1)
    together = kernel(x1, x2).to_dense()
    assert together.shape == (3, 5, 4)
    for index in range(3):
        torch.testing.assert_close(together[index], plain(kernel[index], x1, x2))
    block = TaskPoints(x1[:, :-1], (1, 3), (2, 3))
    x = torch.cat([x1[:, :-1], task_column((1, 3), (2, 3))], dim=-1)
    torch.testing.assert_close(kernel.covariance(block, block), kernel(x).to_dense())


def test_a_kernel_without_batch_is_its_only_member(make):
    kernel = make()
    assert kernel[..., 0] is kernel


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
    assert_close(build(WeightedSourceKernel, normalize=True).task_covariances(), expected * scale)


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
