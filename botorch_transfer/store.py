"""Results of pre-training on disk, so that one process need not repeat another one's work.

Read this to see what is kept where. A file holds tensors and JSON in the format of ``saving``, and
its name is a hash of everything that the result depends on: source data and options, this package's
code, the versions of the libraries below it, and the threads and instructions of the processor. So
a result is the same with an empty folder, a full one, and none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError
from torch import Tensor

from botorch_transfer.saving import read_prior, write_prior

T = TypeVar("T")

VARIABLE, OFF = "BOTORCH_TRANSFER_CACHE", "off"
"""The environment variable that names another folder, and its value for none."""

MAX_BYTES = 500_000_000
"""The size of all files together; beyond, those that were not used for longest are deleted."""

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy")

_place: ContextVar[str | os.PathLike[str] | None] = ContextVar("place", default=None)

_logger = getLogger(__name__)


class Format(NamedTuple, Generic[T]):
    """How results of one kind are written to files.

    Args:
        write: Takes a result apart into what JSON can hold and tensors.
        read: Puts it together again, exactly.
    """

    write: Callable[[T], tuple[Any, Mapping[str, Tensor]]]
    read: Callable[[dict[str, Any], dict[str, Tensor]], T]


def _parts(result: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {str(i): part for i, part in enumerate(result) if isinstance(part, Tensor)}
    return {"parts": [None if isinstance(p, Tensor) else p for p in result]}, tensors


def _joined(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, ...]:
    return tuple(tensors.get(str(i), part) for i, part in enumerate(config["parts"]))


PARTS: Format[tuple[Any, ...]] = Format(_parts, _joined)
"""The format of tuples of tensors and numbers."""


class Store:
    """Files of results by content key, in a folder that the user alone can read.

    Whatever goes wrong with a file or the folder is one line in the log.

    Args:
        folder: The folder, which need not exist; ``None`` to keep nothing.
        num_threads: PyTorch's number of threads, on which last digits depend.

    Example:
        >>> store = Store(Path("results"), num_threads=1)
        >>> store.keep("key", (torch.ones(2), 7), PARTS)
        >>> store.find("key", PARTS)
        (tensor([1., 1.]), 7)
    """

    def __init__(self, folder: Path | None, num_threads: int) -> None:
        self._folder, self._num_threads, self._is_full = folder, num_threads, False

    def find(self, key: str, kind: Format[T]) -> T | None:
        """Reads a result; ``None`` if there is none that can be read.

        Args:
            key: Its content key.
            kind: How it was written.

        Returns:
            The result.
        """
        if self._folder is None:
            return None
        path, name = self._path(self._folder, key)
        try:
            result = kind.read(*read_prior(path, name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _logger.warning("Pre-training is repeated, as %s cannot be read: %s", path, error)
            return None
        with suppress(OSError):  # deleted meanwhile, or a folder that cannot be written to
            os.utime(path)
        return result

    def keep(self, key: str, result: T, kind: Format[T]) -> None:
        """Writes a result, unless that has failed before.

        Args:
            key: Its content key.
            result: The result.
            kind: How to write it.
        """
        if self._folder is None or self._is_full:
            return
        path, name = self._path(self._folder, key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            write_prior(path, name, *kind.write(result))
            path.chmod(0o600)
            self._make_room(self._folder)
        except (OSError, SafetensorError) as error:
            self._is_full = True
            _logger.warning("Pre-training is not remembered, as %s fails: %s", path, error)

    def _path(self, folder: Path, key: str) -> tuple[Path, str]:
        """A result's file, and the name in it by which it is told from any other file."""
        parts = _environment(), str(self._num_threads), key
        name = hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()
        return folder / f"{name}.safetensors", name

    @staticmethod
    def _make_room(folder: Path) -> None:
        found, total = [], 0
        for path in folder.glob("*.safetensors*"):  # unfinished ones of a killed process, too
            with suppress(FileNotFoundError):  # deleted by another process
                found.append((path.stat().st_mtime, path, path.stat().st_size))
        for _, path, size in sorted(found, reverse=True):
            total += size
            if total > MAX_BYTES:
                path.unlink(missing_ok=True)


def store() -> Store:
    """The store on disk: of this context, the environment variable's, or the user's own.

    Returns:
        The store; if it is switched off, one that keeps nothing.

    Example:
        >>> with cached_in("off"):
        ...     assert store().find("key", Format(dict, dict)) is None
    """
    place = _place.get() or os.environ.get(VARIABLE) or user_cache_path("botorch_transfer", False)
    return _store_at(str(place), torch.get_num_threads())


@cache
def _store_at(place: str, num_threads: int) -> Store:
    # A folder of its own within the given one: nothing else is ever deleted.
    return Store(None if place == OFF else Path(place) / "pretraining", num_threads)


@contextmanager
def cached_in(place: str | os.PathLike[str] | None) -> Iterator[None]:
    """Keeps results of pre-training in another folder, as long as the context lasts.

    Args:
        place: The folder; ``"off"`` to keep none, ``None`` to change nothing.

    Yields:
        Nothing.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> with cached_in("my_cache"):
        ...     sources = SourceGPs.fit_once([(X, X.sum(-1, keepdim=True))])
    """
    token = _place.set(place or _place.get())
    try:
        yield
    finally:
        _place.reset(token)


@cache
def _environment() -> str:
    """Hashes what results depend on besides their content: code, libraries and processor."""
    digest = hashlib.blake2b(digest_size=16)
    for library in _LIBRARIES:
        digest.update(f"{library} {version(library)} ".encode())
    digest.update(torch.backends.cpu.get_cpu_capability().encode())
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}".encode() + path.read_bytes())
    return digest.hexdigest()
