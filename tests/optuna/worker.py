"""One worker of a study: `python -m tests.optuna.worker STORAGE NAME TRIALS SEED`."""

from __future__ import annotations

import sys
import time

import optuna

from tests.optuna.studies import sampler
from tests.suggestion.brief_search import brief_search


def open_study(storage: str, name: str, seed: int) -> optuna.Study:
    """Opens a study in a database, or in a journal file."""
    backend: str | optuna.storages.JournalStorage = storage
    if "://" not in storage:
        file = optuna.storages.journal.JournalFileBackend(storage)
        backend = optuna.storages.JournalStorage(file)
    return optuna.create_study(
        storage=backend, study_name=name, load_if_exists=True, sampler=sampler(seed=seed)
    )


def objective(trial: optuna.Trial) -> float:
    """Takes long enough for trials to overlap."""
    x = trial.suggest_float("x", 0, 1)
    time.sleep(0.05)
    return (x - 0.3) ** 2


if __name__ == "__main__":
    *storages, name, trials, seed = sys.argv[1:]
    with brief_search():
        for storage in storages:
            open_study(storage, name, int(seed)).optimize(objective, n_trials=int(trials))
