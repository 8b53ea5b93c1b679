"""Remembering what the source posteriors are at the target's training inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place."""
    # Inference tensors have no version: they do not change where anybody could see the old value.
    return 0 if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class _Memory:
    state: Tensor | None = None
    version: int = 0
    entries: tuple[tuple[Tensor, Tensor], ...] = ()


class InputCache:
    """Remembers the values of one function at the last few inputs that carry no graph.

    A model asks for the same source quantities at its training inputs at every step of a fit and
    at every prediction. Inputs are compared by value, because GPyTorch copies and expands them on
    the way; inputs that require a gradient are neither remembered nor answered from memory. Copies
    and pickles start empty.

    Args:
        size: The number of inputs to remember.
        max_elements: The size above which a value is not worth its memory.

    Example:
        >>> cache = InputCache()
        >>> state, x = torch.ones(1), torch.rand(3, 2)
        >>> cache(torch.square, x, state) is cache(torch.square, x, state)
        True
    """

    def __init__(self, size: int = 2, max_elements: int = 2**22) -> None:
        self._size = size
        self._max_elements = max_elements
        self._memory = _Memory()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_memory": _Memory()}

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
        version = version_of(state)
        memory = self._memory
        if memory.state is not state or memory.version != version:
            memory = _Memory(state, version)
        for inputs, value in memory.entries:
            same_kind = inputs.shape == x.shape and inputs.dtype is x.dtype
            if same_kind and torch.equal(inputs, x):
                return value
        # Tensors made in inference mode could not enter a later fit.
        with torch.inference_mode(False), torch.no_grad():
            value, inputs = function(x), x.clone()
        if value.numel() <= self._max_elements:
            entries = (*memory.entries, (inputs, value))[-self._size :]
            # Replaced as a whole: another thread sees the old memory or the new one.
            self._memory = _Memory(state, version, entries)
        return value
