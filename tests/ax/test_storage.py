"""Experiments that are stored halfway and go on in a fresh process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sqlalchemy")

from botorch_transfer import ScaMLGP
from botorch_transfer.ax import attach_history, transfer_generation_strategy
from botorch_transfer.ax.experiments import experiment_of
from tests.ax.conftest import FAST, plain_space
from tests.ax.stored_experiment import go_on, load, sqlite
from tests.brief import brief_optimization


@pytest.fixture(scope="module")
def stored(tmp_path_factory, make_client, old_clients, runs):
    """Experiments after two trials, by name: where they are, and how they go on uninterrupted."""
    folder = tmp_path_factory.mktemp("stored")
    database = sqlite(folder / "ax.sqlite", create=True)
    runs = runs[runs["task"] != "sunday"].groupby("task", sort=False).head(4)
    old = old_clients(runs, plain_space(), database)
    experiments = [experiment_of(client) for client in old]
    forms: dict[str, Any] = {
        "experiments": {"model": ScaMLGP, "history": experiments},
        "table": {"model": ScaMLGP, "history": runs},
    }
    paths, clients, going_on = {}, {}, {}
    with brief_optimization(max_iter=10):  # as in the fresh process
        for form, options in forms.items():
            stored = form == "experiments"
            name = f"{form} in a database"
            where = database if stored else None
            clients[form] = client = make_client(name=name, storage_config=where, seed=None)
            if stored:
                attach_history(client, old)
                paths[name] = str(folder / "copy.sqlite")
            client.set_generation_strategy(
                transfer_generation_strategy(**options, optimizer_options=FAST)
            )
            go_on(client, 2)
            paths[form] = str(folder / f"{form}.json")
            client.save_to_json_file(paths[form])
        shutil.copy(folder / "ax.sqlite", folder / "copy.sqlite")
        for form, client in clients.items():
            going_on[form] = going_on[f"{form} in a database"] = go_on(client, 1)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ax.stored_experiment", json.dumps(paths)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return paths, going_on, found, old


@pytest.mark.parametrize("name", ["table", "experiments in a database"])
def test_a_fresh_process_suggests_the_same(stored, name):
    _, going_on, found, _ = stored
    np.testing.assert_allclose(np.log(found[name]), np.log(going_on[name]), rtol=0, atol=1e-6)


def test_experiments_that_json_drops_are_named_and_can_be_attached_again(stored):
    paths, going_on, found, old = stored
    assert found["experiments"].startswith("UserInputError: The old experiments ['monday', ")
    assert "attach_history(client" in found["experiments"]
    client = load(paths_of(paths, "experiments"), "")
    attach_history(client, old)
    again = go_on(client, 1)
    np.testing.assert_allclose(np.log(again), np.log(going_on["experiments"]), rtol=0, atol=1e-6)


def test_a_clients_own_seed_is_not_stored_by_ax(make_client, complete, runs, tmp_path):
    client = make_client(history=runs.groupby("task").head(5), seed=3)
    complete(client)
    path = tmp_path / "seeded.json"
    client.save_to_json_file(str(path))
    uninterrupted = [list(complete(client)[0].values()) for _ in range(2)]
    loaded, found = load(path, ""), []
    assert loaded._random_seed is None  # if it is stored one day, the documentation says so
    for _ in range(2):
        torch.manual_seed(3)
        found.append(list(complete(loaded)[0].values()))
    np.testing.assert_allclose(np.log(found), np.log(uninterrupted), rtol=0, atol=1e-6)


def paths_of(paths: dict[str, str], name: str) -> Path:
    return Path(paths[name])
