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
from typing import Any, TypeVar

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


def stored(
    key: str,
    compute: Callable[[], T],
    write: Callable[[T], tuple[Mapping[str, Any], Mapping[str, Tensor]]],
    read: Callable[[dict[str, Any], dict[str, Tensor]], T],
) -> T:
    """Reads a result from disk, or computes it and writes it.

    The folder is the one of :func:`cached_in`, of the environment variable, or the user's own, and
    the user alone can read it. Whatever goes wrong with it is one line in the log.

    Args:
        key: The content key of everything that the result depends on.
        compute: Computes the result.
        write: Takes a result apart into what JSON can hold and tensors.
        read: Puts it together again, exactly.

    Returns:
        The result.

    Example:
        >>> with cached_in("my_cache"):
        ...     for compute in (lambda: {"n": torch.ones(2)}, None):
        ...         found = stored("key", compute, lambda found: ({}, found), lambda _, n: n)
        >>> found
        {'n': tensor([1., 1.])}
    """
    place = _place.get() or os.environ.get(VARIABLE) or user_cache_path("botorch_transfer", False)
    if str(place) == OFF:
        return compute()
    parts = _environment(), str(torch.get_num_threads()), key  # last digits depend on the threads
    name = hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()
    # A folder of its own within the given one: nothing else is ever deleted.
    path = Path(place) / "pretraining" / f"{name}.safetensors"
    try:
        result = read(*read_prior(path, name))  # the name tells it from any other file
        with suppress(OSError):  # deleted meanwhile, or a folder that cannot be written to
            os.utime(path)
        return result
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        _logger.warning("Pre-training is repeated, as %s cannot be read: %s", path, error)
    result = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        write_prior(path, name, *write(result))
        path.chmod(0o600)
        _make_room(path.parent)
    except (OSError, SafetensorError) as error:
        _logger.warning("Pre-training is not remembered, as %s fails: %s", path, error)
    return result


def _make_room(folder: Path) -> None:
    found, total = [], 0
    for path in folder.glob("*.safetensors*"):  # unfinished ones of a killed process, too
        with suppress(FileNotFoundError):  # deleted by another process
            found.append((path.stat().st_mtime, path, path.stat().st_size))
    for _, path, size in sorted(found, reverse=True):
        total += size
        if total > MAX_BYTES:
            path.unlink(missing_ok=True)


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
