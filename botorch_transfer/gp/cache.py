"""A cache for what is computed from source data: values by the tensors they depend on.

A model asks for the same source quantities at its training inputs at every step of a fit and at
every prediction, and for the factorized covariance of the same source data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def collapse_batch(x: Tensor) -> Tensor:
    """Drops the batch dimensions of inputs that are the same in every batch.

    Args:
        x: A ``batch_shape x n x d`` tensor of inputs.

    Returns:
        An ``n x d`` tensor if all batches hold the same inputs, else ``x``.
    """
    if x.dim() == 2 or x.numel() == 0:
        return x
    first = x[(0,) * (x.dim() - 2)]
    return first if bool((x == first).all()) else x


def same_inputs(x1: Tensor, x2: Tensor) -> bool:
    """Whether two tensors of inputs are one, for values and gradients alike."""
    if x1 is x2:
        return True
    has_graph = x1.requires_grad or x2.requires_grad
    return not has_graph and x1.shape == x2.shape and torch.equal(x1, x2)


@dataclass(frozen=True)
class _Memory:
    state: tuple[Tensor, ...] = ()
    version: tuple[tuple[int, int], ...] = ()
    entries: tuple[tuple[Tensor, Any], ...] = ()


class Cache:
    """Remembers the values of one function, without their graph, at the inputs used last.

    Inputs are compared by value, because GPyTorch copies and expands them on the way. The
    function's state (all other tensors it uses) is compared by identity: when a tensor of the state
    is replaced or changed in place, every value is forgotten. Inputs that require a gradient are
    neither remembered nor looked up. Deep copies start with what is remembered, pickles empty.

    Args:
        size: The number of inputs to remember.
        max_elements: The number of elements above which a tensor is not worth its memory.

    Example:
        >>> cache = Cache()
        >>> x, state = torch.rand(3, 2), torch.ones(1)
        >>> cache(torch.square, x, state) is cache(torch.square, x, state)
        True
    """

    def __init__(self, size: int = 2, max_elements: float = 2**22) -> None:
        self._size = size
        self._max_elements = max_elements
        self._memory = _Memory()

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        # Nothing writes into what is remembered, so copies share it.
        twin = Cache(self._size, self._max_elements)
        twin._memory = self._memory
        return twin

    def content(self) -> tuple[Any, ...]:
        """Nothing: caches are equal, whatever they remember."""
        return ()

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size, "_max_elements": self._max_elements}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The caches of earlier versions may have no sizes.
        self.__init__(state.get("_size", 1), state.get("_max_elements", inf))  # type: ignore[misc]

    def __call__(self, function: Callable[[Tensor], T], x: Tensor, *state: Tensor) -> T:
        """Evaluates the function, or recalls its value.

        Args:
            function: What to evaluate.
            x: A tensor of any shape: its input.
            *state: Tensors that the function depends on, too.

        Returns:
            ``function(x)``.
        """
        if x.requires_grad:
            return function(x)
        # Inference tensors have no version counter; they are assumed unchanged.
        version = tuple((id(t), 0 if t.is_inference() else t._version) for t in state)
        memory = self._memory
        if memory.version != version:
            memory = _Memory(state, version)
        for inputs, value in memory.entries:
            same_kind = inputs.dtype is x.dtype and inputs.device == x.device
            if same_kind and torch.equal(inputs, x):
                self._remember(memory, inputs, value)
                return value
        # Tensors made in inference mode could not enter a later fit.
        with torch.inference_mode(False), torch.no_grad():
            value, inputs = function(x), x.clone()
        if not isinstance(value, Tensor) or value.numel() <= self._max_elements:
            self._remember(memory, inputs, value)
        return value

    def _remember(self, memory: _Memory, inputs: Tensor, value: Any) -> None:
        """Makes a value the one that was used last; the one used longest ago may be forgotten."""
        others = [entry for entry in memory.entries if entry[0] is not inputs]
        entries = (*others, (inputs, value))[-self._size :]
        # Replaced as a whole: another thread sees the old memory or the new one.
        self._memory = _Memory(memory.state, memory.version, entries)
