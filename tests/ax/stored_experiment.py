"""Continues a stored experiment in a process of its own: see test_storage."""

import json
import sys
from pathlib import Path

import torch
from ax.api.client import Client
from ax.api.configs import StorageConfig
from ax.storage.sqa_store.db import create_all_tables, get_engine, init_engine_and_session_factory

import botorch_transfer.ax  # noqa: F401  (tells Ax of the models)
from tests.ax.conftest import plain_loss
from tests.brief import brief_optimization


def sqlite(path: Path, create: bool = False) -> StorageConfig:
    """A database in a file."""
    url = f"sqlite:///{path}"
    if create:
        init_engine_and_session_factory(url=url, force_init=True)  # one at a time
        create_all_tables(get_engine())
    return StorageConfig(url=url)


def load(path: Path, name: str) -> Client:
    """Loads an experiment from a JSON file or a database."""
    if path.suffix == ".json":
        return Client.load_from_json_file(str(path))
    return Client.load_from_database(name, storage_config=sqlite(path))


def go_on(client: Client, count: int) -> list[list[float]]:
    """Suggests and evaluates some more trials, each with its number as PyTorch's seed."""
    found = []
    for _ in range(count):
        torch.manual_seed(len(client._experiment.trials))
        ((trial, config),) = client.get_next_trials(1).items()
        client.complete_trial(trial, {"loss": plain_loss(config, 0.1)})
        found.append([float(value) for value in config.values()])
    return found


def main() -> None:
    stored = json.loads(sys.argv[1])
    found = {}
    for name, path in stored.items():
        try:
            with brief_optimization(max_iter=10):
                found[name] = go_on(load(Path(path), name), 1)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
