"""Prior files: one safetensors file holds a prior's tensors and a JSON header.

Read this when you change what priors save, or when a file does not load. Loading never unpickles,
so a file from a stranger cannot run code. A checksum finds files that were damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT_VERSION = 5
_HEADER = "botorch_transfer"


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
