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
            x = _layer(x, weight, bias)
        return x

    def __getitem__(self, index: Any) -> Self:
        """Selects members of a batch, as GPyTorch's kernels do."""
        selected = type(self).__new__(type(self))
        Module.__init__(selected)
        selected.weights = ParameterList([weight[index] for weight in self.weights])
        selected.biases = ParameterList([bias[index] for bias in self.biases])
        return selected


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``tanh(W x + b)``, for each member of a batch by itself."""
    if weight.dim() == 2:
        layer: Any = _Layer.apply(x, weight, bias)
        return layer
    return torch.tanh(x @ weight.mT + bias.unsqueeze(-2))


class _Layer(torch.autograd.Function):
    """A layer with its closed-form gradient, which can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _tanh(linear(x, weight, bias))
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        (g,) = grad_outputs
        g = torch.addcmul(g, g * y, y, value=-1)
        for_x = g @ weight if ctx.needs_input_grad[0] else None
        rows = g.flatten(end_dim=-2) if g.dim() > 1 else g.unsqueeze(0)
        return for_x, rows.mT @ x.reshape(-1, x.shape[-1]), rows.sum(dim=0)


def _tanh(x: Tensor) -> Tensor:
    """In place; by the logistic function, a third of the time of PyTorch's own on a CPU."""
    return x.tanh_() if x.is_cuda else x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)
