"""Transfer-learning models in Ax: a generation strategy that knows old runs.

Importing this package tells Ax of the models, so that experiments with them can be stored and
loaded: import it also where such an experiment is only loaded.
"""

try:
    import ax.api.client  # noqa: F401
except ImportError as error:
    raise ImportError(
        "botorch_transfer.ax needs Ax: install it by pip install 'botorch_transfer[ax]'."
    ) from error

from botorch_transfer.ax.encoding import EncodedHistory, domain_from_ax, encode_history
from botorch_transfer.ax.history import attach_history
from botorch_transfer.ax.registration import TransferGenerators, register
from botorch_transfer.ax.strategy import transfer_generation_strategy

register()

__all__ = [
    "EncodedHistory",
    "TransferGenerators",
    "attach_history",
    "domain_from_ax",
    "encode_history",
    "transfer_generation_strategy",
]
