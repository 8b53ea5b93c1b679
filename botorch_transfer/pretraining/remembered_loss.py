"""A loss that is not evaluated again where it was evaluated last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


class RememberedLoss:
    """A loss with its gradient that remembers the points of one iteration of a line search.

    PyTorch's L-BFGS, called for one iteration at a time, begins each by an evaluation where the
    last one ended, which is half of all evaluations.

    Args:
        parameters: What the loss depends on.
        evaluate: Adds the loss's gradient to that of the parameters, and returns the loss.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor(3.0))
        >>> def evaluate():
        ...     print("evaluated")
        ...     loss = x**2
        ...     loss.backward()
        ...     return loss.detach()
        >>> loss = RememberedLoss([x], evaluate)
        >>> loss(), loss(), x.grad
        evaluated
        (tensor(9.), tensor(9.), tensor(6.))
    """

    def __init__(self, parameters: Sequence[Parameter], evaluate: Callable[[], Tensor]) -> None:
        self.parameters = list(parameters)
        self._evaluate = evaluate
        self._known: list[tuple[Tensor, Tensor, Tensor]] = []

    def begin(self) -> None:
        """Begins an iteration: forgets all points but the present one."""
        here = self._here()
        self._known = [known for known in self._known if torch.equal(known[0], here)]

    def __call__(self) -> Tensor:
        """Returns the loss, and sets the parameters' gradients."""
        here = self._here()
        for at, loss, gradient in self._known:
            if torch.equal(at, here):
                self._set_gradient(gradient.clone())
                return loss.clone()
        for parameter in self.parameters:
            parameter.grad = None
        loss = self._evaluate()
        self._known.append((here, loss.clone(), self._gradient()))
        return loss

    def _here(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    def _gradient(self) -> Tensor:
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        return torch.cat([gradient.flatten() for gradient in gradients])

    def _set_gradient(self, flat: Tensor) -> None:
        pieces = flat.split([parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
