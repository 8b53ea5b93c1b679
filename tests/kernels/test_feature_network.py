from __future__ import annotations

import pytest
import torch

from botorch_transfer.kernels.feature_network import FeatureNetwork


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
