"""Transfer learning in Optuna: a sampler and a pruner that learn from earlier studies."""

from botorch_transfer.old_studies import OptunaHistory, history_from_optuna
from botorch_transfer.optuna.pruner import TransferPruner
from botorch_transfer.optuna.sampler import TransferSampler

__all__ = ["OptunaHistory", "TransferPruner", "TransferSampler", "history_from_optuna"]
