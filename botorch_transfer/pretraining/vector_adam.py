"""Adam on one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class VectorAdam:
    """The steps of :class:`torch.optim.Adam`, whose book-keeping takes longer than a small step.

    Args:
        vector: What is optimized.
        betas: The rates at which the moments of the gradient forget.
        eps: What keeps the denominator positive.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> adam = VectorAdam(x)
        >>> x.grad = torch.tensor([0.1, -4.0])
        >>> adam.step(learning_rate=0.5)
        >>> x.detach()
        tensor([ 2.5000, -1.5000])
    """

    def __init__(
        self, vector: Parameter, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.vector = vector
        self.betas, self.eps = betas, eps
        self.moments = torch.zeros_like(vector.detach()), torch.zeros_like(vector.detach())
        self.count = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Takes a step against the vector's gradient."""
        gradient, (first, second), (b1, b2) = self.vector.grad, self.moments, self.betas
        assert gradient is not None
        self.count += 1
        first.lerp_(gradient, 1 - b1)
        second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        unbiased = (second / (1 - b2**self.count)).clamp_min_(torch.finfo(second.dtype).tiny)
        # √v, which takes longer than the rest of the step where PyTorch calls upon MKL's threads.
        root = unbiased.rsqrt().mul_(unbiased).add_(self.eps)
        self.vector.addcdiv_(first, root, value=-learning_rate / (1 - b1**self.count))

    def state_dict(self) -> dict[str, Any]:
        """The state, as PyTorch's optimizers give it."""
        state = {"first": self.moments[0], "second": self.moments[1], "count": self.count}
        return {"state": {0: state}, "param_groups": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state that :meth:`state_dict` gave."""
        state: dict[str, Any] = state_dict["state"].get(0, {"count": 0})
        self.count = state["count"]
        for own, name in zip(self.moments, ("first", "second"), strict=True):
            saved: Tensor | float = state.get(name, 0.0)
            own.copy_(torch.as_tensor(saved))
