"""A Gaussian process sampler that starts from earlier studies.

The sampler lives in the package ``botorch_transfer``. It is imported when it is first asked for,
because that takes PyTorch: loading this module takes nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TransferPruner", "TransferSampler", "history_from_optuna"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import botorch_transfer.optuna
    except ImportError as error:
        raise ImportError(
            f"{name} needs botorch_transfer: install it by pip install 'botorch_transfer[optuna]'."
        ) from error
    return getattr(botorch_transfer.optuna, name)


def __dir__() -> list[str]:
    """The names that can be asked for."""
    return sorted(__all__)
