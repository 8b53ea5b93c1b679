"""A real tuning history to try transfer learning on; see `README.md` in this folder."""

from botorch_transfer.datasets.history import (
    load_learning_curves,
    load_tuning_history,
    tuning_search_space,
)

__all__ = ["load_learning_curves", "load_tuning_history", "tuning_search_space"]
