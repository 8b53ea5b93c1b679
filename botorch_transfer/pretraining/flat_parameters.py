"""Parameters as one vector: an optimizer's step costs by the tensor, not by the number."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter


class FlatParameters:
    """A vector whose pieces are a module's parameters.

    Args:
        parameters: Parameters of one dtype, on one device. Until :meth:`release` they are views of
            the vector: what changes it changes them, and the other way round.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> flat = FlatParameters(layer.parameters())
        >>> flat.vector.data.fill_(7.0).shape
        torch.Size([3])
        >>> layer.weight.tolist(), layer.bias.tolist()
        ([[7.0, 7.0]], [7.0])
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = list(parameters)
        pieces = [p.detach().flatten() for p in self.parameters]
        self.vector = Parameter(torch.cat(pieces) if pieces else torch.empty(0))
        views = self.vector.detach().split([p.numel() for p in self.parameters])
        for parameter, piece in zip(self.parameters, views, strict=True):
            parameter.data = piece.view_as(parameter)

    def clear_gradients(self) -> None:
        """Forgets the parameters' gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def gather_gradients(self) -> Tensor:
        """Makes one gradient of the parameters' own, zero for what has none; returns it."""
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        self.vector.grad = torch.cat([gradient.flatten() for gradient in gradients])
        return self.vector.grad

    def release(self) -> None:
        """Gives each parameter memory of its own again."""
        self.clear_gradients()
        for parameter in self.parameters:
            parameter.data = parameter.detach().clone()
