"""Transfer learning in Ax: a generation strategy whose models learn from old runs.

The import of this package registers the models with Ax. Ax can then store and load experiments that
use these models. Import this package before you load such an experiment.
"""

try:
    import ax.api.client  # noqa: F401
except ImportError as error:
    raise ImportError(
        "botorch_transfer.ax needs Ax: install it by pip install 'botorch_transfer[ax]'."
    ) from error

from botorch_transfer.ax.strategy import (
    TransferEarlyStoppingStrategy,
    TransferGenerators,
    register,
    transfer_generation_strategy,
    transfer_report,
)

register()

__all__ = [
    "TransferEarlyStoppingStrategy",
    "TransferGenerators",
    "transfer_generation_strategy",
    "transfer_report",
]
