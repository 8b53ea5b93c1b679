"""Saves priors to files, and caches results of pre-training in files.

Read this to change the file format, to debug a file that does not load, or to find the cached
files. A prior is saved as the arguments of its constructor. One safetensors file holds the tensors,
and its JSON header holds the remaining arguments. Loading never unpickles, so a file cannot run
code. A checksum detects damaged files.

Results of pre-training are cached in the same format, so that other processes do not repeat the
work. The name of a cached file is a hash of everything that the result depends on: source data,
options, this package's code, the versions of its dependencies, the number of threads, and the
instruction set of the processor. A result is therefore the same with or without cached files.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
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
from botorch_transfer.input_transforms import describe_transform, restore_transform
from botorch_transfer.memo import content_key
from botorch_transfer.progress import overridden

FORMAT_VERSION = 8
_HEADER = "botorch_transfer"

#: Keys of JSON objects that represent an object, a tensor, a hyperprior, or an input transform.
_CLASS, _TENSOR, _PRIOR, _TRANSFORM = "$class", "$tensor", "$prior", "$input_transform"

T = TypeVar("T")

#: Environment variable with the cache folder, and its value to disable the cache.
VARIABLE, OFF = "BOTORCH_TRANSFER_CACHE", "off"

#: Maximum total size of cached files; the least recently used files are deleted first.
MAX_BYTES = 500_000_000

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy")

_place: ContextVar[str | os.PathLike[str] | None] = ContextVar("place", default=None)

_logger = getLogger(__name__)


# -------------------------------------------------------------------------------------------- files


def arguments_of(saved: Any) -> dict[str, Any]:
    """Returns an object's constructor arguments, read from attributes of the same names."""
    return {name: getattr(saved, name) for name in inspect.signature(type(saved)).parameters}


def pack(value: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """Converts a value to JSON, and collects the value's tensors.

    Args:
        value: Plain values, tensors, GPyTorch's hyperpriors, input transforms, objects of classes
            in ``SAVABLE``, or mappings and sequences of such values.
        tensors: A dictionary to which the tensors are added.
        name: The prefix of the names of tensors.

    Returns:
        A JSON value that refers to tensors by name.

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
        value: The result of :func:`pack`.
        tensors: The tensors by name.
        input_transform: The user's input transform, in place of a transform that cannot be saved;
            ``None`` if the user gives no transform.

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

    By default, each constructor argument is read from the attribute of the same name. A class
    without such attributes overrides ``_arguments`` and ``_from_arguments``.
    """

    def _arguments(self) -> dict[str, Any]:
        """Returns the values to save, by name; see :func:`pack`."""
        return arguments_of(self)

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any], **modules: Any) -> Self:
        """Builds the object from saved values and from modules that the user gives."""
        return cls(**arguments, **modules)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the prior to one safetensors file.

        Args:
            path: The file. An existing file is replaced once the new file is complete.

        Raises:
            FileNotFoundError: If the folder does not exist.

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
        """Loads a prior that :meth:`save` wrote, without unpickling.

        Args:
            path: The file.
            device: The device of the prior; the CPU if omitted.
            input_transform: The prior's input transform. Omit a ``Normalize`` of BoTorch, because
                the file contains it. The file contains no other transform: if the prior was built
                with another transform, pass this transform again.
            **modules: ``mean_module`` and ``covar_module`` of a ``PretrainedPrior`` that was built
                from your own modules. The file holds only the parameters of these modules. If mean
                and kernel shared a network when the prior was saved, the given mean and kernel must
                also share a network. Omit the modules for other priors.

        Returns:
            The prior.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is damaged, is not a prior, holds a prior of another class, or
                has an unknown version; or if ``modules`` are missing, not needed, or have another
                structure than the saved modules.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> SourceGPs.fit([(X, X.sum(-1, keepdim=True))]).save("prior.safetensors")
            >>> SourceGPs.load("prior.safetensors", device="cpu").dim
            2
        """
        arguments = read_prior(path, cls.__name__, device, input_transform)
        prior = cls._from_arguments(arguments, **modules).to(device)
        if input_transform is not None and getattr(prior, "input_transform", None) is None:
            raise ValueError("The saved prior has no input transform: leave out input_transform=.")
        return prior


def write_prior(path: str | os.PathLike[str], name: str, content: Mapping[str, Any]) -> None:
    """Writes a prior to a file. An existing file is replaced once the new file is complete.

    Args:
        path: The file.
        name: The name of the prior's class.
        content: The values to save, by name; see :func:`pack`.

    Raises:
        FileNotFoundError: If the folder does not exist.
    """
    path, tensors = Path(path), dict[str, Tensor]()
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r}: create the folder.")
    config = pack(content, tensors)
    # Clones tensors, because the format does not allow tensors that share memory.
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in tensors.items()}
    header = {
        "class": name,
        "format_version": FORMAT_VERSION,
        "config": config,
        "checksum": _checksum(config, tensors),
    }
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    try:
        save_file(tensors, unfinished, metadata={_HEADER: json.dumps(header)})
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_prior(
    path: str | os.PathLike[str],
    name: str,
    device: torch.device | str | None = None,
    input_transform: InputTransform | None = None,
) -> dict[str, Any]:
    """Reads the saved values from a file that :func:`write_prior` wrote.

    Args:
        path: The file.
        name: The class name that the file's header must have.
        device: The device of the tensors; the CPU if omitted.
        input_transform: The prior's input transform, if a file cannot hold this transform.

    Returns:
        The saved values, by name.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, is not a prior, holds a prior of another class, or has
            an unknown version.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}: correct the path of the prior.")
    try:
        with safe_open(path, framework="pt") as file:
            header = _check_header(path, file.metadata(), name)
            # The handle has keys(), but is not a mapping.
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} is damaged or not a safetensors file ({error}): save the prior again."
        ) from error
    if header.get("checksum") != _checksum(header.get("config", {}), tensors):
        raise ValueError(f"{str(path)!r} is damaged: save the prior again.")
    moved = {key: tensor.to(device or "cpu") for key, tensor in tensors.items()}
    return unpack(header["config"], moved, input_transform)


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
            f"{str(path)!r} has no prior of botorch_transfer: give the path of a saved prior."
        ) from None
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format version {version}, but the installed botorch_transfer reads "
            f"version {FORMAT_VERSION}: if the file is newer, upgrade botorch_transfer; if the "
            "file is older, fit and save the prior again."
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
    """Reads a cached result from disk, or computes the result and writes it.

    The cache folder is set by :func:`cached_in`, or by the environment variable
    ``BOTORCH_TRANSFER_CACHE``. The default is the user's cache folder. Only the user can read the
    folder. An error in the cache is logged, not raised.

    Args:
        key: The content key (:func:`~.memo.content_key`) of everything that the result depends on.
        compute: Function that computes the result.
        write: Function that converts the result to the values to save, by name; see :func:`pack`.
        read: Function that restores exactly the written result. Its arguments are the file's path,
            and the class name that the file's header must have.

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
    # The last digits of a result depend on the number of threads.
    name = content_key(_environment(), torch.get_num_threads(), key)
    # A separate folder, so that no other files are deleted.
    path = Path(place) / "pretraining" / f"{name}.safetensors"
    try:
        result = read(path, name)  # the header must have this name
        with suppress(OSError):  # the file was deleted meanwhile, or the folder is read-only
            os.utime(path)
        return result
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        _logger.warning("Pre-training is repeated, because %s cannot be read: %s", path, error)
    result = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        write_prior(path, name, write(result))
        path.chmod(0o600)
        _make_room(path.parent)
    except (OSError, SafetensorError) as error:
        _logger.warning("Pre-training is not cached, because %s cannot be written: %s", path, error)
    return result


def _make_room(folder: Path) -> None:
    found, total = [], 0
    for path in folder.glob("*.safetensors*"):  # includes unfinished files of a killed process
        with suppress(FileNotFoundError):  # deleted by another process
            found.append((path.stat().st_mtime, path, path.stat().st_size))
    for _, path, size in sorted(found, reverse=True):
        total += size
        if total > MAX_BYTES:
            path.unlink(missing_ok=True)


def cached_in(place: str | os.PathLike[str] | None) -> AbstractContextManager[None]:
    """Caches results of pre-training in another folder while the context is active.

    Args:
        place: The folder; ``"off"`` disables the cache, ``None`` does not change the folder.

    Returns:
        The context manager.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> with cached_in("my_cache"):
        ...     sources = SourceGPs.fit_once([(X, X.sum(-1, keepdim=True))])
    """
    return overridden(_place, place or None)


@cache
def _environment() -> str:
    """Hashes this package's code, the libraries' versions and the processor's instruction set."""
    folder, libraries = Path(__file__).parent, [version(library) for library in _LIBRARIES]
    code = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py")}
    return content_key(sorted(code.items()), libraries, torch.backends.cpu.get_cpu_capability())
