"""MPHD's network: from the context of an input to the Gamma distribution of its lengthscale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Linear, Module, Sequential, Tanh
from torch.nn.functional import softplus


class ContextNetwork(Module):
    r"""A small network whose output is a Gamma distribution for each context [Fan2024mphd]_.

    Contexts are standardized by those of the training data, and clipped to their range: beyond it
    the network would extrapolate. The default head is unbounded and positive: one output is the
    logarithm of the shape, the other that of the mean, both relative to ``base``, so that a network
    with the output zero is the Gamma distribution ``base`` for all contexts.

    Args:
        contexts: An ``n x s`` tensor: the contexts of the training data.
        base: A tensor of two: shape and rate that the network's output is relative to.
        hidden: The widths of the hidden layers, which end in tanh.
        bounded_head: Whether to end in tanh and softplus as the authors' program does, which
            confines shape and rate to (0.31, 1.31), whatever ``base``.

    Example:
        >>> contexts = torch.tensor([[1.0, 2.0], [1.0, 5.0]])
        >>> network = ContextNetwork(contexts, base=torch.tensor([3.0, 6.0]))
        >>> shape, rate = network(contexts)
        >>> shape.shape, rate.shape
        (torch.Size([2]), torch.Size([2]))
    """

    offset: Tensor
    scale: Tensor
    lower: Tensor
    upper: Tensor
    base: Tensor

    def __init__(
        self,
        contexts: Tensor,
        base: Tensor,
        hidden: Sequence[int] = (16, 16),
        bounded_head: bool = False,
    ) -> None:
        super().__init__()
        contexts = contexts.detach()
        deviation = contexts.std(dim=0, correction=0)
        self.register_buffer("offset", contexts.mean(dim=0))
        # What is the same in all training domains cannot tell them apart.
        self.register_buffer("scale", torch.where(deviation > 0, deviation, 1.0))
        self.register_buffer("lower", contexts.amin(dim=0))
        self.register_buffer("upper", contexts.amax(dim=0))
        self.register_buffer("base", base.detach().to(contexts).clone())
        self.hidden, self.bounded_head = tuple(hidden), bounded_head
        layers: list[Module] = []
        width = contexts.shape[-1]
        for size in self.hidden:
            layers += [Linear(width, size), Tanh()]
            width = size
        self.layers = Sequential(*layers, Linear(width, 2)).to(contexts)

    @property
    def context_size(self) -> int:
        """The number ``s`` of numbers in a context."""
        return self.offset.shape[-1]

    def freeze(self) -> ContextNetwork:
        """Turns the weights into buffers: there is nothing left to fit, and copies can share them.

        Returns:
            The network itself.
        """
        for layer in self.layers:
            for name, parameter in list(layer.named_parameters()):
                delattr(layer, name)
                layer.register_buffer(name, parameter.detach())
        return self

    def forward(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the network.

        Args:
            contexts: A ``... x s`` tensor.

        Returns:
            Shapes and rates, two ``...`` tensors.
        """
        clipped = torch.maximum(torch.minimum(contexts, self.upper), self.lower)
        output = self.layers((clipped - self.offset) / self.scale)
        if self.bounded_head:
            shape, rate = softplus(torch.tanh(output)).unbind(dim=-1)
            return shape, rate
        log_shape, log_mean = output.unbind(dim=-1)
        shape = self.base[0] * log_shape.exp()
        return shape, shape * self.base[1] / self.base[0] * (-log_mean).exp()
