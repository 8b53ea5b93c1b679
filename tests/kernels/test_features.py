from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel, FeatureNetwork


@pytest.fixture
def x():
    return torch.rand(6, 3, dtype=torch.double)


@pytest.fixture
def network():
    return FeatureNetwork(3, hidden=(5, 4))


def test_kernel_is_that_of_the_features(x, network):
    base = ScaleKernel(MaternKernel(ard_num_dims=4)).double()
    kernel = FeatureKernel(base, network)
    y = torch.rand(2, 3, dtype=torch.double)
    torch.testing.assert_close(kernel(x).to_dense(), base(network(x)).to_dense())
    torch.testing.assert_close(kernel(x, y).to_dense(), base(network(x), network(y)).to_dense())
    torch.testing.assert_close(kernel(x, diag=True), base(network(x), diag=True))


def test_gradients_reach_the_network(x, network):
    kernel = FeatureKernel(RBFKernel().double(), network)
    kernel(x).to_dense().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_members_of_a_batch(x):
    base = RBFKernel(batch_shape=torch.Size([2])).double()
    network = FeatureNetwork(3, hidden=(4,))
    for parameter in network.parameters():
        parameter.data = torch.stack([parameter.data, 2 * parameter.data])
    kernel = FeatureKernel(base, network)
    assert kernel.batch_shape == (2,)
    torch.testing.assert_close(kernel[1](x).to_dense(), kernel(x.expand(2, 6, 3)).to_dense()[1])
    unbatched = FeatureKernel(RBFKernel(), FeatureNetwork(3))
    assert unbatched[0] is unbatched


def test_linear_kernel(x):
    kernel = BiasedLinearKernel(bias_variance=0.5, weight_variance=2.0).double()
    y = torch.rand(2, 3, dtype=torch.double)
    torch.testing.assert_close(kernel(x, y).to_dense(), 0.5 + 2 * x @ y.T, rtol=1e-6, atol=0)
    torch.testing.assert_close(kernel(x, diag=True), kernel(x).to_dense().diagonal())


def test_linear_kernel_in_a_batch(x):
    kernel = BiasedLinearKernel().double()
    for parameter in kernel.parameters():
        parameter.data = torch.tensor([0.3, 1.2], dtype=torch.double)
    kernel._batch_shape = torch.Size([2])
    values = kernel(x.expand(2, 6, 3)).to_dense()
    for index in range(2):
        expected = kernel.bias_variance[index] + kernel.weight_variance[index] * x @ x.T
        torch.testing.assert_close(values[index], expected)
    diagonal = kernel(x.expand(2, 6, 3), diag=True)
    torch.testing.assert_close(diagonal, values.diagonal(dim1=-2, dim2=-1))


def test_a_selection_of_features_is_refused(network):
    with pytest.raises(ValueError, match="active_dims: give the network fewer features"):
        FeatureKernel(RBFKernel(active_dims=[0]), network)
