"""Experiments that are stored halfway and go on in a fresh process."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("sqlalchemy")

from botorch_transfer import ScaMLGP
from botorch_transfer.ax import transfer_generation_strategy
from botorch_transfer.ax_experiments import experiment_of
from tests.ax.conftest import BRIEFEST, plain_space
from tests.ax.stored_experiment import go_on, load, sqlite
from tests.brief import brief_optimization


@pytest.fixture(scope="module")
def stored(tmp_path_factory, make_client, old_clients, runs):
    """How experiments after two trials go on, uninterrupted and in a fresh process, by name."""
    folder = tmp_path_factory.mktemp("stored")
    database = sqlite(folder / "ax.sqlite", create=True)
    runs = runs[runs["task"] != "sunday"].groupby("task", sort=False).head(4)
    old = [experiment_of(client) for client in old_clients(runs, plain_space())]
    paths, clients = {}, {}
    with brief_optimization(max_iter=10):  # as in the fresh process
        for name, history, where in (("table", runs, None), ("experiments", old, database)):
            clients[name] = client = make_client(name=name, storage_config=where, seed=None)
            client.set_generation_strategy(
                transfer_generation_strategy(ScaMLGP, history, optimizer_options=BRIEFEST)
            )
            go_on(client, 2)
            paths[name] = str(folder / f"{name}.{'json' if where is None else 'sqlite'}")
        clients["table"].save_to_json_file(paths["table"])
        shutil.copy(folder / "ax.sqlite", paths["experiments"])
        going_on = {name: go_on(client, 1) for name, client in clients.items()}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ax.stored_experiment", json.dumps(paths)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return going_on, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["table", "experiments"])
def test_a_fresh_process_suggests_the_same(stored, name):
    """A table from a JSON file, old experiments from a database."""
    going_on, found = stored
    np.testing.assert_allclose(np.log(found[name]), np.log(going_on[name]), rtol=0, atol=1e-6)


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
