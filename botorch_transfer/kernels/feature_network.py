"""The network whose features a pre-trained mean and kernel share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter, ParameterList
from torch.nn.functional import linear


class FeatureNetwork(Module):
    r"""A multilayer perceptron with ``tanh`` after every layer, the last one included.

    Weights may have a batch shape, as the hyperparameters of GPyTorch's kernels do: each member of
    a batched model then has a network of its own.

    Args:
        dim: The number of inputs ``d``, which lie in the unit cube.
        hidden: The width of each layer; the last one's is the number of features.
        seed: The seed of the initial weights.

    Raises:
        ValueError: If there is no layer, or one without units.

    Example:
        >>> network = FeatureNetwork(dim=3, hidden=(16, 8))
        >>> network(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5, 8])
    """

    def __init__(self, dim: int, hidden: Sequence[int] = (32, 32), seed: int = 0) -> None:
        super().__init__()
        if len(hidden) == 0 or min(hidden) < 1:
            raise ValueError(f"hidden={tuple(hidden)}: give one width or more, each positive.")
        generator = torch.Generator().manual_seed(seed)
        widths = [dim, *hidden]
        self.weights, self.biases = ParameterList(), ParameterList()
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            weight = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.double)
            weight /= math.sqrt(fan_in)
            bias = torch.zeros(fan_out, dtype=torch.double)
            if layer == 0:
                # As if the unit cube were centred and spanned from -1 to 1.
                weight *= 2
                bias = -weight.sum(dim=-1) / 2
            self.weights.append(Parameter(weight))
            self.biases.append(Parameter(bias))

    @property
    def num_features(self) -> int:
        """The number of features."""
        return cast(Tensor, self.weights[-1]).shape[-2]

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the features.

        Args:
            x: A ``... x n x d`` tensor of inputs.

        Returns:
            A ``... x n x num_features`` tensor.
        """
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = torch.tanh(_affine(x, weight, bias))
        return x

    def __getitem__(self, index: Any) -> Self:
        """Selects members of a batch, as GPyTorch's kernels do."""
        selected = type(self).__new__(type(self))
        Module.__init__(selected)
        selected.weights = ParameterList([weight[index] for weight in self.weights])
        selected.biases = ParameterList([bias[index] for bias in self.biases])
        return selected


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return linear(x, weight, bias)
    return x @ weight.mT + bias.unsqueeze(-2)
