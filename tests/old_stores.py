"""Old runs in other programs' stores, for the page of the documentation on them."""

from pathlib import Path

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from pandas import DataFrame, Timestamp

from tests.ax.stored_experiment import sqlite

LOSSES = {"monday": {1e-4: 0.5, 1e-3: 0.2, 1e-2: 0.4}, "tuesday": {1e-4: 0.7, 1e-3: 0.3, 1e-2: 0.3}}
FAILED = {"lr": 0.05, "optimizer": "sgd"}


def search_runs(experiment_names: list[str]) -> DataFrame:
    """What `mlflow.search_runs` returns, column by column, the newest run first.

    MLflow itself is no requirement.
    """
    rows = []
    for number, name in enumerate(experiment_names, start=1):
        about = {"experiment_id": str(number), "artifact_uri": f"mlruns/{number}/artifacts"}
        about |= dict.fromkeys(("start_time", "end_time"), Timestamp("2026-01-01", tz="UTC"))
        for lr, loss in LOSSES[name].items():
            config = {"params.lr": str(lr), "params.optimizer": "adam"}
            rows.append({**about, "status": "FINISHED", "metrics.loss": loss, **config})
        config = {f"params.{parameter}": str(value) for parameter, value in FAILED.items()}
        rows.append({**about, "status": "FAILED", "metrics.loss": float("nan"), **config})
    found = DataFrame(rows[::-1]).assign(**{"tags.mlflow.runName": "run"})
    found.insert(0, "run_id", [f"{index:032x}" for index in range(len(found))])
    return found


def fill_ax(path: Path) -> None:
    """Stores the runs as experiments of Ax.

    Args:
        path: The database to make.
    """
    storage = sqlite(path, create=True)
    lr = RangeParameterConfig("lr", (1e-5, 1e-1), parameter_type="float", scaling="log")
    optimizer = ChoiceParameterConfig("optimizer", ["adam", "sgd"], parameter_type="str")
    for name, losses in LOSSES.items():
        client = Client(storage_config=storage)
        client.configure_experiment([lr, optimizer], name=name)
        client.configure_optimization("-loss")
        for value, loss in losses.items():
            trial = client.attach_trial({"lr": value, "optimizer": "adam"})
            client.complete_trial(trial, {"loss": loss})
        client.mark_trial_failed(client.attach_trial(FAILED))
