from __future__ import annotations

import torch

from botorch_transfer.kernels.features import FeatureMean, FeatureNetwork
from botorch_transfer.models.pretrained import PullToPretrained, deviations


def test_log_density_of_each_member():
    anchor = torch.tensor([1.0, -2.0], dtype=torch.double)
    own = anchor + torch.tensor([[0.0, 0.0], [0.3, 0.4]], dtype=torch.double)
    scalar = torch.tensor([0.5, 0.7], dtype=torch.double)
    pairs = [(own, anchor), (scalar, torch.tensor(0.5, dtype=torch.double))]
    expected = [0.0, -0.5 * (0.25 / 0.1**2 + 0.04)]
    value = PullToPretrained(pairs, [0.1, 1.0]).loss()
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.double))


def test_weights_of_networks_are_held_tighter():
    mean = FeatureMean(FeatureNetwork(2, hidden=(3,)))
    names = ["network.weights.0", "weight", "network.biases.0", "bias"]
    assert deviations(mean, names) == [0.1, 0.3, 0.1, 0.3]
