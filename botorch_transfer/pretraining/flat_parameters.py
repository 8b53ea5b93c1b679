"""Parameters as one vector: an optimizer's step costs by the tensor, not by the number."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Parameter


class FlatParameters:
    """A vector whose pieces are a module's parameters, and one of their gradients.

    Args:
        parameters: Parameters of one dtype, on one device. Until :meth:`release` they are views of
            the vector: what changes it changes them, and the other way round. So it is with their
            gradients, which add up in ``gradient`` until that is set to zero.

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
        self.gradient = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        sizes = [p.numel() for p in self.parameters]
        views = self.vector.detach().split(sizes), self.gradient.split(sizes)
        for parameter, piece, gradient in zip(self.parameters, *views, strict=True):
            parameter.data = piece.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)  # which backward passes add to

    def release(self) -> None:
        """Gives each parameter memory of its own again, and no gradient."""
        for parameter in self.parameters:
            parameter.grad = None
            parameter.data = parameter.detach().clone()
