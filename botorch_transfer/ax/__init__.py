"""Transfer-learning models in Ax: a generation strategy that knows old runs.

Importing this package registers the models with Ax, so that experiments with them can be stored and
loaded. Import it before loading such an experiment, too.
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
