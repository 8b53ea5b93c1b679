"""Remembering what the source posteriors are at the target's training inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


def collapse_batch(x: Tensor) -> Tensor:
    """Drops batch dimensions along which inputs only repeat themselves.

    Args:
        x: A ``batch_shape x n x d`` tensor of inputs.

    Returns:
        An ``n x d`` tensor if all batches hold the same inputs, else ``x``.
    """
    if x.dim() == 2 or x.numel() == 0:
        return x
    first = x[(0,) * (x.dim() - 2)]
    return first if bool((x == first).all()) else x


class InputCache:
    """Remembers the values of one function at the last few inputs that carry no graph.

    A model asks for the same source quantities at its training inputs at every step of a fit and
    at every prediction. Inputs are compared by value, because GPyTorch copies and expands them on
    the way; inputs that require a gradient are neither remembered nor answered from memory. Copies
    and pickles start empty.

    Args:
        size: The number of inputs to remember.

    Example:
        >>> cache = InputCache()
        >>> state, x = torch.ones(1), torch.rand(3, 2)
        >>> cache(torch.square, x, state) is cache(torch.square, x, state)
        True
    """

    def __init__(self, size: int = 2) -> None:
        self._entries: deque[tuple[Tensor, Tensor]] = deque(maxlen=size)
        self._stamp: tuple[Tensor, int] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_entries": deque(maxlen=self._entries.maxlen), "_stamp": None}

    def __call__(self, function: Callable[[Tensor], Tensor], x: Tensor, state: Tensor) -> Tensor:
        """Evaluates the function, or recalls its value.

        Args:
            function: What to evaluate.
            x: A ``batch_shape x n x d`` tensor of inputs.
            state: A tensor that the function depends on; when it is replaced or changed in place,
                what is remembered is stale.

        Returns:
            ``function(x)``.
        """
        if x.requires_grad:
            return function(x)
        self._forget_if_stale(state)
        for inputs, value in self._entries:
            if inputs.shape == x.shape and torch.equal(inputs, x):
                return value
        # Tensors made in inference mode could not enter a later fit.
        with torch.inference_mode(False), torch.no_grad():
            value, inputs = function(x), x.clone()
        self._entries.append((inputs, value))
        return value

    def _forget_if_stale(self, state: Tensor) -> None:
        stamp = self._stamp
        if stamp is None or stamp[0] is not state or stamp[1] != state._version:
            self._entries.clear()
            self._stamp = (state, state._version)
