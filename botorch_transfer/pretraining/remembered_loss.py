"""A loss that is not evaluated again where it was evaluated last."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter


class RememberedLoss:
    """A loss with its gradient that remembers the points of one iteration of a line search.

    PyTorch's L-BFGS, called for one iteration at a time, begins each by an evaluation where the
    last one ended, which is half of all evaluations.

    Args:
        vector: What the loss depends on.
        evaluate: Sets the vector's gradient, and returns the loss.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> def evaluate():
        ...     print("evaluated")
        ...     x.grad = 2 * x.detach()
        ...     return x.detach().square().sum()
        >>> loss = RememberedLoss(x, evaluate)
        >>> loss(), loss(), x.grad
        evaluated
        (tensor(9.), tensor(9.), tensor([6.]))
    """

    def __init__(self, vector: Parameter, evaluate: Callable[[], Tensor]) -> None:
        self.vector = vector
        self._evaluate = evaluate
        self._known: list[tuple[Tensor, Tensor, Tensor]] = []

    def begin(self) -> None:
        """Begins an iteration: forgets all points but the present one."""
        self._known = [known for known in self._known if torch.equal(known[0], self.vector)]

    def __call__(self) -> Tensor:
        """Returns the loss, and sets the gradient."""
        for at, loss, gradient in self._known:
            if torch.equal(at, self.vector):
                assert self.vector.grad is not None
                self.vector.grad.copy_(gradient)
                return loss.clone()
        loss = self._evaluate()
        assert self.vector.grad is not None
        point = self.vector.detach().clone()
        self._known.append((point, loss.clone(), self.vector.grad.clone()))
        return loss
