"""Transfer learning in Optuna: a sampler and a pruner that learn from earlier studies."""

try:
    import optuna  # noqa: F401
except ImportError as error:
    raise ImportError(
        "botorch_transfer.optuna needs Optuna: install it by pip install "
        "'botorch_transfer[optuna]'."
    ) from error

from botorch_transfer.optuna.history import OptunaHistory, history_from_optuna
from botorch_transfer.optuna.pruner import TransferPruner
from botorch_transfer.optuna.sampler import TransferSampler

__all__ = ["OptunaHistory", "TransferPruner", "TransferSampler", "history_from_optuna"]
