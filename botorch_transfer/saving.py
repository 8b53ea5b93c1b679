"""Priors on disk: the files that users save, and the results that are remembered between processes.

Read this when you change what priors save, when a file does not load, or to see what is kept where.
A prior is saved as the arguments of its constructor. One safetensors file holds their tensors, and
all else as a JSON header. Loading never unpickles, so a file from a stranger cannot run code. A
checksum finds files that were damaged.

Results of pre-training are such files too, so that one process need not repeat another process's
work. A file's name is a hash of everything that the result depends on: source data and options,
this package's code, the versions of the libraries below it, and the threads and instructions of the
processor. So a result is the same with an empty folder, a full one, and none.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.priors import Prior
from platformdirs import user_cache_path
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from botorch_transfer.gp.hyperpriors import describe_prior, make_prior
from botorch_transfer.gp.state import SAVABLE, NamedState
from botorch_transfer.input_transforms import (
    describe_transform,
    resolve_input_transform,
    restore_transform,
)
from botorch_transfer.memo import content_key

FORMAT_VERSION = 7
_HEADER = "botorch_transfer"

_CLASS, _TENSOR, _PRIOR, _TRANSFORM = "$class", "$tensor", "$prior", "$input_transform"
"""Keys of a JSON object that stands for another object, by the kind of this object."""

T = TypeVar("T")

VARIABLE, OFF = "BOTORCH_TRANSFER_CACHE", "off"
"""The environment variable that names another folder, and its value for none."""

MAX_BYTES = 500_000_000
"""The size of all files together; beyond, the least recently used ones are deleted."""

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


def arguments_of(saved: Any) -> dict[str, Any]:
    """Reads the arguments of an object's constructor from attributes of the same names."""
    return {name: getattr(saved, name) for name in inspect.signature(type(saved)).parameters}


def pack(value: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """Describes a value as JSON and tensors.

    Args:
        value: Plain values, tensors, GPyTorch's hyperpriors, input transforms, objects of classes
            in ``SAVABLE``, and mappings and sequences of all these.
        tensors: Tensors are added here.
        name: The prefix of the names of tensors.

    Returns:
        What JSON can hold of the value.

    Example:
        >>> tensors = {}
        >>> pack({"scale": 2.0, "points": torch.ones(2)}, tensors)
        {'scale': 2.0, 'points': {'$tensor': 'points'}}
        >>> unpack(pack({"points": torch.ones(2)}, tensors), tensors)
        {'points': tensor([1., 1.])}
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, Prior):
        return {_PRIOR: pack(describe_prior(value), tensors, name)}
    if isinstance(value, InputTransform):
        return {_TRANSFORM: pack(describe_transform(value), tensors, name)}
    if type(value) in SAVABLE.values():
        return {_CLASS: type(value).__name__, **pack(arguments_of(value), tensors, name)}
    if isinstance(value, Mapping):
        return {k: pack(v, tensors, f"{name}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [pack(part, tensors, f"{name}.{i}") for i, part in enumerate(value)]
    return value


def unpack(
    value: Any, tensors: Mapping[str, Tensor], input_transform: InputTransform | None = None
) -> Any:
    """Restores a value from the result of :func:`pack`; sequences become lists.

    Args:
        value: The result.
        tensors: The tensors by name.
        input_transform: The input transform, if the file cannot hold it.

    Returns:
        The value.
    """
    if isinstance(value, list):
        return [unpack(part, tensors, input_transform) for part in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    parts = {k: unpack(part, tensors, input_transform) for k, part in value.items()}
    if _PRIOR in parts:
        return make_prior(*parts[_PRIOR])
    if _TRANSFORM in parts:
        return restore_transform(parts[_TRANSFORM], input_transform)
    return SAVABLE[parts.pop(_CLASS)](**parts) if _CLASS in parts else parts


class Saved(NamedState):
    """Base class of modules that are saved to a file as the arguments of their constructor.

    Each argument is an attribute of the same name. A class with other contents overrides
    ``_arguments`` and ``_from_arguments``.
    """

    def _arguments(self) -> dict[str, Any]:
        """Returns what the file holds, by name; see :func:`pack`."""
        return arguments_of(self)

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any], **modules: Any) -> Self:
        """Builds the object from the contents of a file, and modules that the user passes."""
        return cls(**arguments, **modules)

    @classmethod
    def _read(
        cls,
        path: str | os.PathLike[str],
        name: str,
        device: torch.device | str | None,
        input_transform: InputTransform | None = None,
        **modules: Any,
    ) -> Self:
        arguments = read_prior(path, name, device, input_transform)
        return cls._from_arguments(arguments, **modules).to(device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the prior to one safetensors file.

        Args:
            path: Where to write; an existing file is replaced once the new one is complete.

        Raises:
            FileNotFoundError: If there is no such folder.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.save("sources.safetensors")
            >>> SourceGPs.load("sources.safetensors").task_names
            ('monday',)
        """
        write_prior(path, type(self).__name__, self._arguments())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str | None = None,
        input_transform: InputTransform | None = None,
        **modules: Any,
    ) -> Self:
        """Loads a prior that :meth:`save` wrote. Nothing is ever unpickled.

        Args:
            path: The file.
            device: Where to put the prior; the CPU if omitted.
            input_transform: The prior's input transform. Needed only if it is not BoTorch's
                ``Normalize``, which the file holds.
            **modules: None, except for a ``PretrainedPrior``.

        Returns:
            The prior.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, is no prior, or holds another class or an unknown
                version.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> SourceGPs.fit([(X, X.sum(-1, keepdim=True))]).save("prior.safetensors")
            >>> SourceGPs.load("prior.safetensors", device="cpu").dim
            2
        """
        prior = cls._read(path, cls.__name__, device, input_transform, **modules)
        if input_transform is not None:
            if (saved := getattr(prior, "input_transform", None)) is None:
                raise ValueError(
                    "The saved prior has no input transform: leave out input_transform."
                )
            resolve_input_transform(saved, input_transform)  # refuses another one
        return prior


def write_prior(path: str | os.PathLike[str], name: str, content: Mapping[str, Any]) -> None:
    """Writes a prior; an existing file is replaced once the new one is complete.

    Args:
        path: Where to write.
        name: The prior's class.
        content: The content; see :func:`pack`.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    tensors: dict[str, Tensor] = {}
    config = pack(content, tensors)
    # Copies, because the format does not allow tensors that share memory.
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in tensors.items()}
    header = {
        "class": name,
        "format_version": FORMAT_VERSION,
        "config": config,
        "checksum": _checksum(config, tensors),
    }
    with replaced_when_complete(path) as unfinished:
        save_file(tensors, unfinished, metadata={_HEADER: json.dumps(header)})


def read_prior(
    path: str | os.PathLike[str],
    name: str,
    device: torch.device | str | None = None,
    input_transform: InputTransform | None = None,
) -> dict[str, Any]:
    """Reads the content of a file of :func:`write_prior`.

    Args:
        path: The file.
        name: The class that the file must hold.
        device: Where to put the tensors; the CPU if omitted.
        input_transform: The prior's input transform, if the file cannot hold it.

    Returns:
        The content.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, is no prior, or holds another class or an unknown
            version.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no prior file at {str(path)!r}.")
    try:
        with safe_open(path, framework="pt") as file:
            header = _check_header(path, file.metadata(), name)
            # safe_open's handle has keys() but is no mapping.
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} is damaged or is no safetensors file ({error}): save the prior again."
        ) from error
    if header.get("checksum") != _checksum(header.get("config", {}), tensors):
        raise ValueError(f"{str(path)!r} is damaged: save the prior again.")
    moved = {key: tensor.to(device or "cpu") for key, tensor in tensors.items()}
    content: dict[str, Any] = unpack(header["config"], moved, input_transform)
    return content


def _checksum(config: Any, tensors: Mapping[str, Tensor]) -> str:
    return content_key(json.dumps(config), sorted(tensors.items()))


def _check_header(
    path: str | os.PathLike[str], metadata: Mapping[str, str] | None, class_name: str
) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads((metadata or {})[_HEADER])
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
    if found != class_name:
        raise ValueError(
            f"{str(path)!r} holds a {found}, not a {class_name}: load it by {found}.load(path)."
        )
    return header


# ------------------------------------------------------------------------ results between processes


def stored(
    key: str,
    compute: Callable[[], T],
    write: Callable[[T], Mapping[str, Any]],
    read: Callable[[Path, str], T],
) -> T:
    """Reads a result from disk, or computes it and writes it.

    The folder is the one of :func:`cached_in`, of the environment variable, or the user's own, and
    the user alone can read it. Whatever goes wrong with it is one line in the log.

    Args:
        key: The content key of everything that the result depends on.
        compute: Computes the result.
        write: Turns a result into the content of a file; see :func:`pack`.
        read: Restores it exactly from the file and its name.

    Returns:
        The result.

    Example:
        >>> with cached_in("my_cache"):
        ...     for compute in (lambda: {"n": torch.ones(2)}, None):
        ...         found = stored("key", compute, lambda found: found, read_prior)
        >>> found
        {'n': tensor([1., 1.])}
    """
    place = _place.get() or os.environ.get(VARIABLE) or user_cache_path("botorch_transfer", False)
    if str(place) == OFF:
        return compute()
    # The last digits depend on the threads.
    name = content_key(_environment(), torch.get_num_threads(), key)
    # A folder of its own within the given one: nothing else is ever deleted.
    path = Path(place) / "pretraining" / f"{name}.safetensors"
    try:
        result = read(path, name)  # the name tells it from any other file
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
        write_prior(path, name, write(result))
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
    folder, libraries = Path(__file__).parent, [version(library) for library in _LIBRARIES]
    code = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py")}
    return content_key(sorted(code.items()), libraries, torch.backends.cpu.get_cpu_capability())
