"""The target of a joint GP, given its sources: batches, memory. Values are tested on the models."""

import pickle
from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.joint.conditional import (
    SourceConditional,
    SourceConditionalKernel,
    SourceNoise,
    SourcePoints,
)
from botorch_transfer.joint.kernels import HierarchicalKernel, ScaMLKernel
from tests.gp.padded import points
from tests.joint.joint_models import scattered

SIZES = (5, 3)
NOISE = SOURCE_HYPERPARAMETERS.noise


def build(kind="ScaML", batch_shape=()):
    shape = torch.Size(batch_shape)
    kernels = [RBFKernel(batch_shape=shape) for _ in range(3)]
    if kind == "ScaML":
        kernel = ScaMLKernel(kernels, TaskWeights(2, shape))
    else:
        kernel = HierarchicalKernel(kernels, batch_shape=shape)
    X = points(8, 2, seed=0)
    data = SourcePoints(X, X.sum(-1).sin(), torch.zeros(8), SIZES, ["a", "b"])
    noise = SourceNoise([False, False], NOISE, shape)
    return scattered(SourceConditional(kernel, data, noise).double())


@pytest.fixture(params=["ScaML", "HGP"])
def kind(request):
    return request.param


def dense(conditional, x1, x2):
    """Mean at ``x1`` and covariance, from the kernel over inputs and tasks."""
    data, kernel = conditional.points, conditional.kernel
    tasks = torch.tensor([0] * 5 + [1] * 3).double().unsqueeze(-1)
    source = torch.cat([data.X, tasks], dim=-1)
    first, second = (torch.cat([x, torch.full_like(x[:, :1], 2.0)], dim=-1) for x in (x1, x2))
    K = kernel(source).to_dense() + conditional.noise.variances(data).diag()
    cross = kernel(first, source).to_dense()
    mean = cross @ torch.linalg.solve(K, data.Y)
    solved = torch.linalg.solve(K, kernel(source, second).to_dense())
    return mean, kernel(first, second).to_dense() - cross @ solved


@pytest.mark.parametrize("own", [(), (2,), (3, 2)])
@pytest.mark.parametrize("extra", [(), (4,), (2, 4)])
def test_batches(kind, own, extra):
    """Batches of hyperparameters, and batches of inputs before them."""
    conditional = build(kind, own)
    x1, x2 = points(*extra, *own, 3, 2), points(*own, 2, 2, seed=2)
    mean, covariance = conditional.mean(x1), conditional.covariance(x1, x2)
    variance, square = conditional.variance(x1), conditional.covariance(x1)
    assert mean.shape == variance.shape == (*extra, *own, 3)
    assert covariance.shape == (*extra, *own, 3, 2)
    last = (-1,) * len(own)
    single = conditional[last] if own else conditional
    place = (-1,) * (len(extra) + len(own))
    expected_mean, expected = dense(single, x1[place], x2[last])
    torch.testing.assert_close(mean[place], expected_mean)
    torch.testing.assert_close(covariance[place], expected)
    torch.testing.assert_close(square[place], dense(single, x1[place], x1[place])[1])
    torch.testing.assert_close(variance[place], square[place].diagonal())


def test_a_kernel_of_a_batch(kind):
    kernel, x = SourceConditionalKernel(build(kind, (2,))), points(3, 2)
    torch.testing.assert_close(kernel[1](x).to_dense(), kernel(x).to_dense()[1])


def test_hyperparameters_of_a_batch_share_unbatched_inputs(kind):
    conditional, x = build(kind, (2,)), points(3, 2)
    mean, covariance = conditional.mean(x), conditional.covariance(x)
    assert mean.shape == (2, 3)
    assert covariance.shape == (2, 3, 3)
    torch.testing.assert_close(mean[1], dense(conditional[1], x, x)[0])
    torch.testing.assert_close(covariance[1], dense(conditional[1], x, x)[1])


def test_single_precision_is_factorized_in_double(kind):
    conditional = build(kind)
    expected = conditional.mean(points(4, 2))
    single = deepcopy(conditional).float()
    mean = single.mean(points(4, 2).float())
    assert mean.dtype == torch.float
    assert single.factor().roots[0].dtype == torch.double
    torch.testing.assert_close(mean.double(), expected, atol=5e-3, rtol=0)
    assert single.covariance(points(4, 2).float()).dtype == torch.float


def test_training_keeps_the_graph_and_remembers_nothing(kind):
    conditional = build(kind).train()
    first, second = conditional.factor(), conditional.factor()
    assert first is not second
    first.log_likelihood.backward()
    second.log_likelihood.backward()  # a graph of its own
    with torch.no_grad():
        assert not conditional.factor().log_likelihood.requires_grad


def test_evaluation_remembers_without_graph(kind):
    conditional = build(kind)
    factor = conditional.factor()
    assert factor is conditional.factor()
    assert not factor.log_likelihood.requires_grad
    assert deepcopy(conditional).factor() is factor
    conditional.noise.raw_noise.data.add_(0.1)  # no version counter sees this
    assert conditional.factor() is not factor


def test_pickles_are_small_and_start_empty(kind):
    conditional = build(kind)
    size = len(pickle.dumps(conditional))
    expected = conditional.mean(points(2, 2))
    conditional.covariance(points(2, 2), points(3, 2))
    assert len(pickle.dumps(conditional)) == size
    torch.testing.assert_close(pickle.loads(pickle.dumps(conditional)).mean(points(2, 2)), expected)


def test_kernel_module(kind):
    conditional = build(kind)
    kernel = SourceConditionalKernel(conditional)
    x1, x2 = points(4, 2), points(4, 2, seed=2)
    _, covariance = dense(conditional, x1, x2)
    torch.testing.assert_close(kernel(x1, x2).to_dense(), covariance)
    torch.testing.assert_close(kernel(x1, x2, diag=True), covariance.diagonal())
    square = dense(conditional, x1, x1)[1]
    torch.testing.assert_close(kernel(x1).to_dense(), square)
    torch.testing.assert_close(kernel(x1, x1.clone()).to_dense(), square)
    torch.testing.assert_close(kernel(x1, diag=True), square.diagonal())
    torch.testing.assert_close(kernel(x1)[1:3, 2:].to_dense(), square[1:3, 2:])


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_what_is_almost_singular_gets_jitter(kind):
    conditional = build(kind)
    conditional.points.X[1] = conditional.points.X[0]
    conditional.noise = SourceNoise([True, True], NOISE).double()  # zero
    for root, (rows, _) in zip(conditional.factor().roots, conditional.groups, strict=True):
        expected = conditional.kernel.covariance(rows, rows)
        torch.testing.assert_close(root @ root.mT, expected, atol=1e-4, rtol=0)
