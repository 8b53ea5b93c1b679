"""What Ax's clients keep to themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ax.api.client import Client
from ax.core.experiment import Experiment
from ax.core.search_space import SearchSpace


def experiment_of(target: Client | Experiment) -> Experiment:
    """The experiment that a client has, or the experiment itself."""
    return target._experiment if isinstance(target, Client) else target


def search_space_of(
    space: Client | Experiment | SearchSpace | Sequence[Any],
) -> SearchSpace:
    """The search space of whatever says it."""
    if isinstance(space, SearchSpace):
        return space
    if not isinstance(space, Client | Experiment):
        configured = Client()
        configured.configure_experiment(parameters=space)
        space = configured
    return experiment_of(space).search_space


def save_again(client: Client) -> None:
    """Writes a client's experiment to its database, if it has one."""
    client._save_experiment_to_db_if_possible(experiment=client._experiment)
