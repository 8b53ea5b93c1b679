"""One worker of a study."""

from __future__ import annotations

import time
from collections.abc import Sequence

import optuna
import torch

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


def work(storages: Sequence[str], name: str, trials: int, seed: int) -> None:
    """Works on one study after another, in a process that was forked."""
    torch.set_num_threads(1)  # the threads of the process before are not there
    with brief_search():
        for storage in storages:
            open_study(storage, name, seed).optimize(objective, n_trials=trials)
