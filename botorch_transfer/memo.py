"""A cache of pre-training results. The key of a result is a hash of the inputs' content.

Read this to see when a cached result is used again. Programs often rebuild a model from the same
raw source data: Ax does so for every refit and every cross-validation fold. The objects differ each
time, but their content is the same. Independent jobs of pre-training run in parallel. After an
interruption, finished jobs are not repeated.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain
from threading import Lock
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import torch
from botorch.utils.datasets import SupervisedDataset
from joblib import Parallel, delayed
from torch import Tensor
from torch.nn import Module

T = TypeVar("T")

#: Prefix of the keys of content that cannot be hashed. Each key with this prefix is unique.
UNKNOWN = "unknown-"


class Memo:
    """A cache in memory that maps the hash of a computation's inputs to the computation's result.

    The cache keeps the most recently used results.

    Args:
        size: The maximum number of results.

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
        """Returns the cached result of a key, or computes and caches the result.

        Args:
            key: The content key (:func:`content_key`) of everything that the result depends on.
            compute: Function that computes the result. Callers must not change the result.

        Returns:
            The result.
        """
        with suppress(KeyError):
            return self[key]
        # The caller may have disabled gradients, but pre-training needs gradients, and a later
        # caller may differentiate the result.
        with torch.inference_mode(False), torch.enable_grad():
            self[key] = result = compute()
        return result

    def run(
        self,
        name: str,
        function: Callable[..., T],
        jobs: Sequence[tuple[Any, ...]],
        n_jobs: int | None,
        backend: str | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Yields the results of jobs, which joblib runs in parallel.

        A job with a cached result is not run. Each new result is cached as soon as it is available,
        so a later run does not repeat finished jobs.

        Args:
            name: A name for the function. The name is part of the cache keys.
            function: The function that each job calls. To run jobs in other processes, the function
                must be picklable.
            jobs: The arguments of each job.
            n_jobs: The number of parallel jobs; ``None`` follows ``joblib.parallel_config``.
            backend: Joblib's backend; ``None`` follows ``joblib.parallel_config``.

        Yields:
            Each job's position and result, in the order in which the results become available.

        Example:
            >>> dict(Memo(size=9).run("power", pow, [(2, 3), (3, 2)], n_jobs=1))
            {0: 8, 1: 9}
        """
        positions: dict[str, list[int]] = {}
        for position, job in enumerate(jobs):
            positions.setdefault(content_key(name, *job), []).append(position)
        kept = {key: self[key] for key in positions if key in self}
        new = Parallel(n_jobs=n_jobs, backend=backend, return_as="generator_unordered")(
            delayed(_with_key)(key, function, jobs[first])
            for key, (first, *_) in positions.items()
            if key not in kept
        )
        for key, result in chain(kept.items(), new):
            self[key] = result
            for position in positions[key]:
                yield position, result

    def __reduce__(self) -> tuple[type[Memo], tuple[int]]:
        return Memo, (self._size,)  # in another process, the cache starts empty


def _with_key(key: str, function: Callable[..., T], job: tuple[Any, ...]) -> tuple[str, T]:
    return key, function(*job)


def clear_memos() -> None:
    """Clears all cached results of pre-training in this process.

    Cached files stay on disk. To measure the time of pre-training, also set the environment
    variable ``BOTORCH_TRANSFER_CACHE=off``.

    Example:
        >>> clear_memos()
    """
    for memo in list(Memo._all):
        with memo._lock:
            memo._results.clear()


@runtime_checkable
class HasContent(Protocol):
    """Protocol of objects that have their own method ``content`` for :func:`content_key`."""

    def content(self) -> Sequence[Any]:
        """Returns the values to hash. Objects of one class with equal values have the same key."""
        ...


def content_key(*parts: Any) -> str:
    """Hashes content, so that objects with equal content have equal keys.

    Args:
        *parts: Tensors, arrays, data sets, modules, dataclasses, objects with a ``content()``
            method, plain values, and sequences, sets or mappings of such objects. For any other
            object, each call returns a new random key that starts with ``UNKNOWN``.

    Returns:
        A hexadecimal digest.

    Example:
        >>> content_key(torch.zeros(2), "a") == content_key(torch.zeros(2), "a")
        True
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        for part in parts:
            _update(digest, part)
    except _UnknownContent:
        # Returns a random key, which never equals another key.
        return f"{UNKNOWN}{uuid4().hex}"
    return digest.hexdigest()


class _UnknownContent(Exception):
    """Error for an object whose content cannot be hashed."""


def _update(digest: Any, part: Any) -> None:
    digest.update(f"<{type(part).__qualname__}>".encode())
    # Plain values first: they are the most frequent, and the check for HasContent is slow.
    if isinstance(part, type(None) | bool | int | float | str | bytes):
        digest.update(repr(part).encode())
    elif isinstance(part, Tensor):
        digest.update(f"{part.dtype}{part.device}".encode())
        _update(digest, part.detach().cpu().contiguous().numpy())
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    elif isinstance(part, SupervisedDataset):
        _update_all(digest, (part.X, part.Y, part.Yvar, part.feature_names, part.outcome_names))
    elif isinstance(part, Module):
        # Hashed modules are always used in evaluation mode, so the key does not depend on the mode.
        _update(digest, {name: v for name, v in vars(part).items() if name != "training"})
    elif isinstance(part, HasContent):
        _update_all(digest, part.content())
    elif is_dataclass(part) and not isinstance(part, type):
        _update_all(digest, [getattr(part, field.name) for field in fields(part)])
    elif isinstance(part, Mapping):
        _update_all(digest, [item for pair in part.items() for item in pair])
    elif isinstance(part, Sequence):
        _update_all(digest, part)
    elif isinstance(part, Set):
        _update_all(digest, sorted(part, key=repr))
    else:
        raise _UnknownContent


def _update_all(digest: Any, parts: Sequence[Any]) -> None:
    digest.update(str(len(parts)).encode())
    for part in parts:
        _update(digest, part)
