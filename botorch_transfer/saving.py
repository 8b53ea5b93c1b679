"""Priors on disk: the files that users save, and the results that are remembered between processes.

Read this when you change what priors save, when a file does not load, or to see what is kept where.
One safetensors file holds a prior's tensors and a JSON header. Loading never unpickles, so a file
from a stranger cannot run code. A checksum finds files that were damaged.

Results of pre-training are such files too, so that one process need not repeat another one's work.
A file's name is a hash of everything that the result depends on: source data and options, this
package's code, the versions of the libraries below it, and the threads and instructions of the
processor. So a result is the same with an empty folder, a full one, and none.
"""

from __future__ import annotations

import hashlib
import json
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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT_VERSION = 5
_HEADER = "botorch_transfer"

T = TypeVar("T")

VARIABLE, OFF = "BOTORCH_TRANSFER_CACHE", "off"
"""The environment variable that names another folder, and its value for none."""

MAX_BYTES = 500_000_000
"""The size of all files together; beyond, those that were not used for longest are deleted."""

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy")

_place: ContextVar[str | os.PathLike[str] | None] = ContextVar("place", default=None)

_logger = getLogger(__name__)


# -------------------------------------------------------------------------------------------- files


@contextmanager
def replaced_when_complete(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Replaces a file by what is written in the context, once that is complete.

    Args:
        path: The file.

    Yields:
        Where to write. Should writing fail, the file stays as it was.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r}: make it first.")
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_prior(
    path: str | os.PathLike[str],
    class_name: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Writes a prior; an existing file is replaced once the new one is complete.

    Args:
        path: Where to write.
        class_name: The prior's class.
        config: What JSON can hold of the prior.
        tensors: Its tensors.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    # Copies, because the format does not allow tensors that share memory.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    header = {
        "class": class_name,
        "format_version": FORMAT_VERSION,
        "config": dict(config),
        "checksum": _checksum(config, tensors),
    }
    with replaced_when_complete(path) as unfinished:
        save_file(tensors, unfinished, metadata={_HEADER: json.dumps(header)})


def read_prior(
    path: str | os.PathLike[str], class_name: str, device: torch.device | str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads what :func:`write_prior` wrote.

    Args:
        path: The file.
        class_name: The class that the file must hold.
        device: Where to put the tensors; the CPU if omitted.

    Returns:
        The configuration and the tensors.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, is no prior, or holds another class or an unknown
            version.
    """
    with _opened(path) as file:
        header = _check_header(path, file.metadata(), class_name)
        # safe_open's handle has keys() but is no mapping.
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header.get("checksum") != _checksum(header.get("config", {}), tensors):
        raise ValueError(f"{str(path)!r} is damaged: save the prior again.")
    return header["config"], {name: tensor.to(device or "cpu") for name, tensor in tensors.items()}


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no prior file at {str(path)!r}.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} is damaged or is no safetensors file ({error}): save the prior again."
        ) from error


def _checksum(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(json.dumps(dict(config)).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _check_header(
    path: str | os.PathLike[str], metadata: Mapping[str, str] | None, class_name: str | None
) -> dict[str, Any]:
    try:
        header = json.loads((metadata or {})[_HEADER])
        found, version = header["class"], header["format_version"]
    except (KeyError, TypeError, json.JSONDecodeError):
        raise ValueError(
            f"{str(path)!r} is a safetensors file, but no prior of botorch_transfer."
        ) from None
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format version {version}, and this version of botorch_transfer "
            f"reads version {FORMAT_VERSION}: upgrade botorch_transfer if the file is newer, or "
            "save the prior again with this version."
        )
    if class_name is not None and found != class_name:
        raise ValueError(
            f"{str(path)!r} holds a {found}, not a {class_name}: load it by {found}.load(path)."
        )
    return header


# ------------------------------------------------------------------------ results between processes


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
