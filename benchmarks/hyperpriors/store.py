"""Results that an interrupted experiment need not compute again: a file for each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from botorch_transfer import Hyperprior

T = TypeVar("T")


def remembered(path: Path, compute: Callable[[], T]) -> T:
    """Reads a result from its file, or computes it and writes the file.

    Args:
        path: The JSON file.
        compute: Computes the result, which JSON must be able to hold.

    Returns:
        The result.
    """
    if path.is_file():
        return json.loads(path.read_text())
    result = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    unfinished.write_text(json.dumps(result))
    os.replace(unfinished, path)
    return result


def remembered_hyperprior(path: Path, compute: Callable[[], Hyperprior]) -> Hyperprior:
    """Loads a hyperprior from its file, or learns it and writes the file.

    Args:
        path: The safetensors file.
        compute: Learns the hyperprior.

    Returns:
        The hyperprior.
    """
    if path.is_file():
        return Hyperprior.load(path)
    hyperprior = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    hyperprior.save(path)
    return hyperprior
