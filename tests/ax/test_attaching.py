from __future__ import annotations

from botorch_transfer.ax import attach_history
from botorch_transfer.ax.auxiliary import auxiliary_names
from botorch_transfer.ax.experiments import experiment_of
from tests.ax.conftest import plain_space


def test_clients_and_experiments_are_attached_in_order(make_client, old_clients, runs):
    old = old_clients(runs, plain_space())
    client = make_client()
    attach_history(client, old[:1])
    attach_history(experiment_of(client), [experiment_of(other) for other in old])
    assert set(auxiliary_names(experiment_of(client))) == {"monday", "tuesday", "sunday"}
