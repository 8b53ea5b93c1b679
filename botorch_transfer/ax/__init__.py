"""Transfer-learning models in Ax: a generation strategy that learns from old runs.

Importing this package registers its models with Ax. Ax can then store and load experiments that
use these models. Import the package before you load such an experiment.
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
