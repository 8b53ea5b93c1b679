"""Attaching old experiments to a new one by hand."""

from __future__ import annotations

from collections.abc import Sequence

from ax.api.client import Client
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.experiment import Experiment

from botorch_transfer.ax._internals import experiment_of, save_again
from botorch_transfer.ax.auxiliary import AuxiliaryHistory


def attach_history(
    target: Client | Experiment, experiments: Sequence[Client | Experiment | AuxiliarySource]
) -> None:
    """Attaches old experiments to a new one, for its models to learn from.

    ``transfer_generation_strategy(history=[...])`` does so by itself. It is needed after an
    experiment was loaded from a JSON file, because Ax's JSON storage leaves auxiliary experiments
    out, and for a client with a database, which keeps what is attached before the first trial.

    Args:
        target: The new experiment.
        experiments: The old ones, with their data. Those that are attached already stay.

    Raises:
        UserInputError: If one has no data, or two have one name.

    Example:
        >>> from ax.api.client import Client
        >>> from ax.api.configs import RangeParameterConfig
        >>> old, new = Client(), Client()
        >>> for client, name in ((old, "monday"), (new, "tuesday")):
        ...     x = RangeParameterConfig("x", (0.0, 1.0), parameter_type="float")
        ...     client.configure_experiment([x], name=name)
        ...     client.configure_optimization("-loss")
        >>> old.complete_trial(old.attach_trial({"x": 0.5}), {"loss": 0.3})
        <enum 'TrialStatus'>.COMPLETED
        >>> attach_history(new, [old])
    """
    given = [experiment_of(old) if isinstance(old, Client) else old for old in experiments]
    AuxiliaryHistory.from_experiments(given).attach(experiment_of(target))
    if isinstance(target, Client):
        save_again(target)
