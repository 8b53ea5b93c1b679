from __future__ import annotations

import pytest
import torch

from botorch_transfer.kernels.features import FeatureNetwork


def naive(network, x):
    for weight, bias in zip(network.weights, network.biases, strict=True):
        x = torch.tanh(torch.einsum("...d,fd->...f", x, weight) + bias)
    return x


def test_features_are_those_of_a_multilayer_perceptron():
    network = FeatureNetwork(3, hidden=(5, 4))
    x = torch.rand(2, 6, 3, dtype=torch.double)
    assert network.num_features == 4
    torch.testing.assert_close(network(x), naive(network, x))
    assert network(x).abs().max() < 1  # tanh after the last layer, too


@pytest.mark.parametrize("hidden", [(4,), (5, 4), (3, 5, 2)])
@pytest.mark.parametrize("shape", [(6, 3), (2, 6, 3), (0, 3), (3,)])
def test_gradients_of_all_orders(hidden, shape):
    network = FeatureNetwork(3, hidden)
    x = torch.rand(*shape, dtype=torch.double, requires_grad=True)
    inputs = [x, *network.parameters()]
    torch.testing.assert_close(network(x), naive(network, x))
    values = [value(network, x).sin().sum() for value in (FeatureNetwork.forward, naive)]
    first = [torch.autograd.grad(value, inputs, create_graph=True) for value in values]
    torch.testing.assert_close(*first)
    totals = [sum(gradient.square().sum() for gradient in gradients) for gradients in first]
    torch.testing.assert_close(*(torch.autograd.grad(total, inputs) for total in totals))


def test_gradients_of_weights_alone():
    network, x = FeatureNetwork(3, (5, 4)), torch.rand(6, 3, dtype=torch.double)
    parameters = list(network.parameters())
    gradients = [
        torch.autograd.grad(value(network, x).sin().sum(), parameters)
        for value in (FeatureNetwork.forward, naive)
    ]
    torch.testing.assert_close(*gradients)


def test_each_member_of_a_batch_has_its_own_weights():
    members = [FeatureNetwork(3, hidden=(5, 4), seed=seed) for seed in range(2)]
    batch = FeatureNetwork(3, hidden=(5, 4))
    for name, parameter in batch.named_parameters():
        parameter.data = torch.stack([member.get_parameter(name) for member in members])
    x = torch.rand(7, 2, 6, 3, dtype=torch.double)
    for index, member in enumerate(members):
        torch.testing.assert_close(batch(x)[:, index], member(x[:, index]))
        torch.testing.assert_close(batch[index](x[:, index]), member(x[:, index]))
    shared = batch(x[0, 0])
    assert shared.shape == (2, 6, 4)


def test_seeds():
    x = torch.rand(6, 3, dtype=torch.double)
    torch.manual_seed(1)
    first = FeatureNetwork(3)(x)
    torch.manual_seed(2)
    assert torch.equal(first, FeatureNetwork(3)(x))
    assert not torch.equal(first, FeatureNetwork(3, seed=1)(x))


def test_the_unit_cube_is_not_saturated():
    x = torch.rand(500, 8, dtype=torch.double)
    z = FeatureNetwork(8)(x)
    assert z.mean(dim=0).abs().max() < 0.3
    assert z.std() > 0.2


@pytest.mark.parametrize("hidden", [(), (3, 0)])
def test_no_units_are_refused(hidden):
    with pytest.raises(ValueError, match="each positive"):
        FeatureNetwork(2, hidden=hidden)
