"""Simulates a new user in Optuna and Ax, whose eight old studies differ from the new study.

    python -m benchmarks.story --out FILE [--seeds 10]

The old studies are in SQLite, with pruned, failed and running trials. In one old study, a parameter
has another name. The new study has wider ranges and a new choice. First, samplers with pruners tune
the new study with two workers. Then `suggest` and Ax tune it in batches of three, within the old
ranges. Meanwhile, Ax's experiment is stored in SQLite and in JSON, one trial fails, and one trial
is stopped early. A row of the table is a trial with its final loss.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import optuna
import pandas as pd
import torch
from ax.api.client import Client
from ax.api.configs import StorageConfig
from ax.storage.sqa_store import db
from optuna.pruners import MedianPruner
from optuna.samplers import GPSampler, TPESampler

from benchmarks.ax_study import ax_parameter
from botorch_transfer import SearchSpace, suggest
from botorch_transfer.ax import transfer_generation_strategy
from botorch_transfer.optuna import TransferPruner, TransferSampler

OPTIMIZERS = {"sgd": 0.05, "adam": 0.0, "lion": -0.02}
EPOCHS, OLD_TRIALS, TRIALS, BATCHES = 10, 30, 25, 4
BATCHED = "suggest(n=3)", "Ax, max_trials=3"
UNTRAINED = 0.6  # loss before the first complete trial: about the first value of a curve
SPACE = SearchSpace.from_dict(
    {
        "lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
        "depth": {"type": "int", "low": 1, "high": 8},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
        "momentum": {"type": "float", "low": 0.5, "high": 0.99, "active_if": "optimizer==sgd"},
        "dropout": {"type": "float", "low": 0.0, "high": 0.6},
    }
)

Task = tuple[float, float, float]
#: The method, the number and the state of the trial, and the final loss.
Row = tuple[str, int, str, float | None]


def final_loss(config: dict[str, Any], task: Task) -> float:
    """Computes the final loss of a network.

    Args:
        config: The parameters.
        task: The best logarithm of the learning rate, the best depth and the best dropout.

    Returns:
        The loss.
    """
    rate, depth, dropout = task
    loss = 0.08 + 0.05 * (np.log10(config["lr"]) - rate) ** 2 + OPTIMIZERS[config["optimizer"]]
    loss += 0.01 * (config["depth"] - depth) ** 2 + 0.3 * (config["dropout"] - dropout) ** 2
    is_sgd = config["optimizer"] == "sgd"
    return float(loss + (0.2 * (config["momentum"] - 0.9) ** 2 if is_sgd else 0))


def objective(
    task: Task, seed: int, is_new: bool = False, rate: str = "lr"
) -> Callable[[optuna.Trial], float]:
    """Returns an objective that reports a loss after each epoch.

    With high learning rates, most trials fail.

    Args:
        task: The task, see `final_loss`.
        seed: The seed of the noise.
        is_new: Whether to use the ranges and choices of the new study.
        rate: The name of the learning rate.
    """

    def train(trial: optuna.Trial) -> float:
        rng, lr = np.random.default_rng((seed, trial.number)), (1e-5, 0.1)
        names = ["sgd", "adam"]
        if is_new:
            lr, names = (1e-6, 1.0), list(OPTIMIZERS)
        config: dict[str, Any] = {"lr": trial.suggest_float(rate, *lr, log=True)}
        config["depth"] = trial.suggest_int("depth", 1, 12 if is_new else 8)
        config["optimizer"] = trial.suggest_categorical("optimizer", names)
        if config["optimizer"] == "sgd":
            config["momentum"] = trial.suggest_float("momentum", 0.5, 0.99)
        config["dropout"] = trial.suggest_float("dropout", 0.0, 0.6)
        if config["lr"] > 0.05 and rng.random() < 0.7:
            raise FloatingPointError("diverged")
        end = final_loss(config, task)
        trial.set_user_attr("end", end)
        for epoch in range(1, EPOCHS + 1):
            wave = 1 + 0.2 * np.sin(epoch + 50 * end)
            trial.report(end + 0.5 * np.exp(-epoch / 2.5) * wave, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return end + rng.normal(0, 0.005)

    return train


def _median() -> MedianPruner:
    return MedianPruner(n_startup_trials=5, n_warmup_steps=2)


def old_studies(url: str, tasks: list[Task], seed: int) -> list[str]:
    """Runs the old studies, and returns their names."""
    names = [f"old{number}" for number in range(len(tasks))]
    for number, name in enumerate(names):
        sampler = TPESampler(seed=100 * seed + number)
        study = optuna.create_study(study_name=name, storage=url, sampler=sampler, pruner=_median())
        rate = "learning_rate" if number == len(tasks) - 1 else "lr"
        train = objective(tasks[number], 100 * seed + number, rate=rate)
        study.optimize(train, n_trials=OLD_TRIALS, catch=FloatingPointError)
    optuna.load_study(study_name="old3", storage=url).ask()  # adds a running trial
    return names


def in_optuna(url: str, names: list[str], task: Task, seed: int) -> Iterator[Row]:
    """Tunes the new study with each sampler."""
    old, rename = (url, names), {"learning_rate": "lr"}
    for sampler, pruner in (
        (TransferSampler(old, rename=rename, seed=seed), TransferPruner(old, rename=rename)),
        (TPESampler(seed=seed), _median()),
        (GPSampler(seed=seed), _median()),
    ):
        study = optuna.create_study(sampler=sampler, pruner=pruner)
        train = objective(task, 9999 + seed, is_new=True)
        study.optimize(train, n_trials=TRIALS, n_jobs=2, catch=FloatingPointError)
        for trial in study.trials:
            end = trial.user_attrs.get("end")
            yield type(sampler).__name__, trial.number, trial.state.name, end


def by_suggest(studies: list[optuna.Study], task: Task, seed: int) -> Iterator[Row]:
    """Tunes the task by batches of `suggest`, with the studies' complete trials as old runs."""
    tables = [s.trials_dataframe().assign(task=s.study_name) for s in studies]
    old = pd.concat(tables).rename(columns=lambda name: name.removeprefix("params_"))
    old = old[old["state"] == "COMPLETE"][["task", *SPACE.columns, "value"]]
    runs = None
    for batch in range(BATCHES):
        rows = suggest(SPACE, old, runs, outcome="value", goal="min", n=3, seed=seed)
        rows = rows[SPACE.columns]
        ends = [final_loss(dict(row), task) for _, row in rows.iterrows()]
        for number, end in enumerate(ends):
            yield BATCHED[0], 3 * batch + number, "COMPLETE", end
        runs = pd.concat([runs, rows.assign(value=ends)], ignore_index=True)


def in_ax(studies: list[optuna.Study], folder: str, task: Task, seed: int) -> Iterator[Row]:
    """Tunes the task by batches of Ax's client."""
    storage, file = StorageConfig(url=f"sqlite:///{folder}/ax.db"), f"{folder}/client.json"
    db.init_engine_and_session_factory(url=storage.url, force_init=True)
    db.create_all_tables(db.get_engine())
    client = Client(storage_config=storage, random_seed=seed)
    client.configure_experiment(list(map(ax_parameter, SPACE.parameters)), name="new")
    client.configure_optimization("-value")
    strategy = transfer_generation_strategy(history=studies, missing={"momentum": 0.9})
    client.set_generation_strategy(strategy)
    number = 0
    for batch in range(BATCHES):
        torch.manual_seed(seed + batch)  # Ax does not store the client's seed
        for trial, config in client.get_next_trials(max_trials=3).items():
            end, state = final_loss(dict(config), task), "COMPLETE"
            if number == 4:
                client.mark_trial_failed(trial)
                state = "FAILED"
            elif number == 7:
                for epoch in (1, 2, 3):
                    value = end + 0.5 * float(np.exp(-epoch / 2.5))
                    client.attach_data(trial, {"value": value}, progression=epoch)
                client.mark_trial_early_stopped(trial)
                state = "EARLY_STOPPED"
            else:
                client.complete_trial(trial, raw_data={"value": end})
            yield BATCHED[1], number, state, end
            number += 1
        if batch == 0:
            client = Client.load_from_database("new", storage_config=storage)
        elif batch == 1:
            client.save_to_json_file(file)
            client = Client.load_from_json_file(file)


def story(seed: int) -> pd.DataFrame:
    """Runs all methods for a seed, and returns a table of all trials."""
    rng = np.random.default_rng(seed)
    *old, new = [
        (-3 + 0.3 * rng.normal(), 4 + 0.8 * rng.normal(), 0.25 + 0.08 * rng.normal())
        for _ in range(9)
    ]
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/old.db"
        names = old_studies(url, old, seed)
        # `suggest` and Ax get no study with a renamed parameter: only the sampler renames it.
        studies = [optuna.load_study(study_name=name, storage=url) for name in names[:-1]]
        rows = [
            *in_optuna(url, names, new, seed),
            *by_suggest(studies, new, seed),
            *in_ax(studies, folder, new, seed),
        ]
    table = pd.DataFrame(rows, columns=["method", "trial", "state", "end"])
    return table.assign(seed=seed)


def report(trials: pd.DataFrame) -> pd.DataFrame:
    """Averages over seeds the best complete loss so far, and the losses of trials 4 to 12."""
    complete = trials["end"].where(trials["state"] == "COMPLETE", UNTRAINED)
    best = complete.groupby([trials["method"], trials["seed"]]).cummin()
    curves = trials.assign(best=best).pivot_table("best", "method", "trial")
    means = {f"best after {number + 1}": curves[number] for number in (0, 4, TRIALS - 1)}
    is_later = trials["method"].isin(BATCHED) & (trials["trial"] >= 3)
    later = trials[is_later].groupby("method")["end"].mean()
    return pd.DataFrame({**means, "mean of trials 4 to 12": later}).round(3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    told = pd.concat(map(story, range(arguments.seeds)), ignore_index=True)
    told.to_csv(arguments.out, index=False)
    print(report(told).to_string())
