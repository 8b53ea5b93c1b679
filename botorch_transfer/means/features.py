"""A mean that is linear in learned features."""

from __future__ import annotations

import torch
from gpytorch.means import Mean
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear

from botorch_transfer.kernels.feature_network import FeatureNetwork


class FeatureMean(Mean):
    r"""``wᵀ φ(x) + b``, zero before it is trained.

    Args:
        network: The features ``φ``, usually those of the kernel, too.

    Example:
        >>> mean = FeatureMean(FeatureNetwork(dim=3))
        >>> mean(torch.rand(2, 3, dtype=torch.double))
        tensor([0., 0.], dtype=torch.float64, grad_fn=<AddBackward0>)
    """

    def __init__(self, network: FeatureNetwork) -> None:
        super().__init__()
        self.network = network
        self.weight = Parameter(torch.zeros(network.num_features, dtype=torch.double))
        self.bias = Parameter(torch.zeros((), dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean at ``... x n x d`` inputs."""
        return self.of_features(self.network(x))

    def of_features(self, z: Tensor) -> Tensor:
        """Evaluates the mean where the features ``... x n x f`` are known already."""
        if self.weight.dim() == 1:
            return linear(z, self.weight) + self.bias
        return (z @ self.weight.unsqueeze(-1)).squeeze(-1) + self.bias.unsqueeze(-1)
