"""What Ax's clients keep to themselves."""

from __future__ import annotations

import pytest
from ax.api.client import Client

from botorch_transfer.ax.experiments import experiment_of, save_again, search_space_of
from tests.ax.conftest import mixed_space, plain_space
from tests.ax.signatures import parameters


def test_ax_is_as_it_is_used():
    assert hasattr(Client, "_experiment")
    assert parameters(Client._save_experiment_to_db_if_possible) == ["self", "experiment"]


def test_the_experiment_of_a_client_or_itself(make_client):
    client = make_client()
    experiment = experiment_of(client)
    assert experiment.name == "new"
    assert experiment_of(experiment) is experiment


@pytest.mark.parametrize("space", [plain_space, mixed_space])
def test_the_search_space_of_whatever_says_it(make_client, space):
    client = make_client(space())
    expected = experiment_of(client).search_space
    assert list(expected.parameters) == [config.name for config in space()]
    for says in (client, experiment_of(client), expected, space()):
        assert search_space_of(says) == expected


def test_what_was_changed_is_saved_again(make_client, tmp_path):
    pytest.importorskip("sqlalchemy")
    from tests.ax.stored_experiment import load, sqlite

    path = tmp_path / "ax.sqlite"
    client = make_client(name="mine", storage_config=sqlite(path, create=True))
    experiment_of(client).description = "changed"
    assert experiment_of(load(path, "mine")).description != "changed"
    save_again(client)
    assert experiment_of(load(path, "mine")).description == "changed"


def test_without_a_database_nothing_is_saved(make_client):
    save_again(make_client())
