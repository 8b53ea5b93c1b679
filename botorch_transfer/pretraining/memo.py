"""Pre-training once: results are remembered by the content of what they were computed from.

Programs rebuild a model many times from the same raw source data (Ax for every refit and every
cross-validation fold). Objects differ each time, their content does not.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from threading import Lock
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import torch
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.nn import Module

T = TypeVar("T")

# Frozen modules are used in evaluation mode, whatever the mode they are handed over in.
_NO_CONTENT = {"training"}


class Memo:
    """Results of pre-training, kept by content key: the ones used last, in this process.

    Args:
        size: The number of results to keep.

    Example:
        >>> memo = Memo(size=2)
        >>> memo["key"] = 1
        >>> "key" in memo, memo["key"]
        (True, 1)
    """

    _all: ClassVar[WeakSet[Memo]] = WeakSet()

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()
        Memo._all.add(self)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        with self._lock:
            self._results.move_to_end(key)
            return self._results[key]

    def __setitem__(self, key: str, result: Any) -> None:
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            while len(self._results) > self._size:
                self._results.popitem(last=False)

    def recall(self, key: str, compute: Callable[[], T]) -> T:
        """Recalls a result, or computes and keeps it.

        Args:
            key: The content key of everything that the result depends on.
            compute: Computes the result, which must not be changed afterwards.

        Returns:
            The result.
        """
        with suppress(KeyError):
            return self[key]
        # Whoever builds a model may have no use for gradients, but pre-training has, and so may
        # whoever recalls its result.
        with torch.inference_mode(False), torch.enable_grad():
            result = compute()
        self[key] = result
        return result


def clear_memos() -> None:
    """Forgets all results of pre-training, for instance to time it again.

    Example:
        >>> clear_memos()
    """
    for memo in list(Memo._all):
        with memo._lock:
            memo._results.clear()


@runtime_checkable
class HasContent(Protocol):
    """An object that says by itself what it depends on."""

    def content(self) -> Sequence[Any]:
        """The parts that make two objects equal."""
        ...


def content_key(*parts: Any) -> str:
    """Hashes content: equal content gives an equal key, whatever objects hold it.

    Args:
        *parts: Tensors, arrays, datasets, modules, dataclasses, objects with a ``content()``,
            sequences, sets or mappings of these, and plain values. Anything else is equal to
            nothing.

    Returns:
        A hexadecimal digest.

    Example:
        >>> content_key(torch.zeros(2), "a") == content_key(torch.zeros(2), "a")
        True
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        _update(digest, part)
    return digest.hexdigest()


def _update(digest: Any, part: Any) -> None:
    digest.update(f"<{type(part).__qualname__}>".encode())
    if isinstance(part, Tensor):
        digest.update(f"{part.dtype}{part.device}".encode())
        _update(digest, part.detach().cpu().contiguous().numpy())
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    elif isinstance(part, SupervisedDataset):
        _update_all(digest, (part.X, part.Y, part.Yvar, part.feature_names, part.outcome_names))
    elif isinstance(part, Module):
        _update(digest, {n: v for n, v in vars(part).items() if n not in _NO_CONTENT})
    elif isinstance(part, HasContent):
        _update_all(digest, part.content())
    elif is_dataclass(part) and not isinstance(part, type):
        _update_all(digest, [getattr(part, field.name) for field in fields(part)])
    elif isinstance(part, Mapping):
        _update_all(digest, [item for pair in part.items() for item in pair])
    elif isinstance(part, Sequence) and not isinstance(part, str | bytes):
        _update_all(digest, part)
    elif isinstance(part, Set):
        _update_all(digest, sorted(part, key=repr))
    elif isinstance(part, type(None) | bool | int | float | str | bytes):
        digest.update(repr(part).encode())
    else:
        # What cannot be told apart by content is never taken for something seen before.
        digest.update(uuid4().bytes)


def _update_all(digest: Any, parts: Sequence[Any]) -> None:
    digest.update(str(len(parts)).encode())
    for part in parts:
        _update(digest, part)
