from __future__ import annotations

import torch

from botorch_transfer.kernels.features import FeatureMean, FeatureNetwork


def test_mean_is_linear_in_the_features():
    network = FeatureNetwork(3, hidden=(5, 4))
    mean = FeatureMean(network)
    x = torch.rand(2, 6, 3, dtype=torch.double)
    assert mean(x).abs().max() == 0
    mean.weight.data.normal_()
    mean.bias.data.fill_(0.7)
    torch.testing.assert_close(mean(x), network(x) @ mean.weight + 0.7)
    torch.testing.assert_close(mean.of_features(network(x)), mean(x))


def test_members_of_a_batch():
    mean = FeatureMean(FeatureNetwork(3, hidden=(4,)))
    for parameter in mean.parameters():
        parameter.data = torch.randn(2, *parameter.shape, dtype=torch.double)
    x = torch.rand(6, 3, dtype=torch.double)
    values = mean(x.expand(5, 2, 6, 3))
    assert values.shape == (5, 2, 6)
    z = torch.tanh(x @ mean.network.weights[0][1].T + mean.network.biases[0][1])
    torch.testing.assert_close(values[3, 1], z @ mean.weight[1] + mean.bias[1])
