"""Tunes two parameters, starting from earlier studies of similar problems."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import optunahub


def make_objective(best_rate: float, best_layers: int) -> Callable[[optuna.Trial], float]:
    """Returns an objective function whose minimum is at the given values."""

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
        layers = trial.suggest_int("layers", 1, 6)
        return (rate / best_rate - 1) ** 2 / (1 + (rate / best_rate) ** 2) + 0.1 * abs(
            layers - best_layers
        )

    return objective


if __name__ == "__main__":
    # To use your own studies, replace the list by ("sqlite:///old.db", ["first", "second", ...]).
    old_studies = []
    for seed, (rate, layers) in enumerate([(1e-3, 2), (3e-3, 3), (2e-3, 2)]):
        old = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        old.optimize(make_objective(rate, layers), n_trials=15)
        old_studies.append(old)

    package = optunahub.load_module("samplers/transfer_gp")
    sampler = package.TransferSampler(old_studies, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(make_objective(1.5e-3, 2), n_trials=4)
    print(study.best_trial.value, study.best_trial.params)
