"""Gaussian process sampler that starts from earlier studies.

The sampler is in the package ``botorch_transfer``, which needs PyTorch. This module imports that
package only when a public name is accessed, so the module can be loaded without the package.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TransferPruner", "TransferSampler", "history_from_optuna"]


def __getattr__(name: str) -> Any:
    """Imports a name from ``botorch_transfer.optuna``."""
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
    """Returns the public names."""
    return sorted(__all__)
