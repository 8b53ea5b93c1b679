"""What functions take, for tests that Ax's own are still as they are overridden."""

import inspect
from collections.abc import Callable
from typing import Any


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of what a function takes, in order."""
    return list(inspect.signature(function).parameters)
