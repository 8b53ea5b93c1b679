"""Old Ax experiments as history: Ax's auxiliary experiments, and how to attach them.

A strategy with old experiments keeps an :class:`AuxiliaryHistory`. :func:`attach_history` attaches
them by hand, where Ax's storage has lost them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from ax.api.client import Client
from ax.core import Experiment
from ax.core.auxiliary import AuxiliaryExperimentPurpose
from ax.core.auxiliary_source import AuxiliarySource
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.experiments import experiment_of, save_again

logger = logging.getLogger(__name__)

TRANSFERABLE = AuxiliaryExperimentPurpose.TRANSFERABLE_EXPERIMENT


class AuxiliaryHistory:
    """The names of old experiments and, until stored and loaded, the experiments themselves.

    Storage keeps the names. The experiments are attached to the new one as Ax's auxiliary
    experiments, which its SQL storage keeps by reference and its JSON storage leaves out.

    Args:
        names: The names of the experiments.
        sources: The experiments.
    """

    def __init__(
        self, names: Sequence[str], sources: Sequence[AuxiliarySource] | None = None
    ) -> None:
        self.names = list(names)
        self.sources = sources

    @classmethod
    def from_experiments(
        cls, experiments: Sequence[Client | Experiment | AuxiliarySource]
    ) -> AuxiliaryHistory:
        """Makes a history of experiments, or of Ax's ``AuxiliarySource``s, which also map names.

        Args:
            experiments: The old experiments, or their clients, with data.

        Returns:
            The history.

        Raises:
            UserInputError: If one has no data, or two have one name.
        """
        sources = [
            given if isinstance(given, AuxiliarySource) else AuxiliarySource(experiment_of(given))
            for given in experiments
        ]
        names = [source.experiment.name for source in sources]
        if len(set(names)) < len(names):
            raise UserInputError(f"Old experiments need different names, but have {names}.")
        for source in sources:
            if source.data.empty:
                raise UserInputError(
                    f"The old experiment {source.experiment.name!r} has no data: leave it out."
                )
        return cls(names, sources)

    def attach(self, experiment: Experiment) -> None:
        """Attaches the old experiments to a new one, unless they are attached already.

        Args:
            experiment: The new experiment.

        Raises:
            UserInputError: If they are not in memory, because the experiment comes from storage.
        """
        absent = [name for name in self.names if name not in auxiliary_names(experiment)]
        if absent and self.sources is None:
            raise UserInputError(
                f"The old experiments {absent} are not attached, because Ax's JSON files leave "
                "auxiliary experiments out, and databases keep only those that attach_history "
                "attached: attach them by botorch_transfer.ax.attach_history(client, [...])."
            )
        # Ax puts each one first, and the order matters to some models.
        for source in reversed(self.sources or []):
            if source.experiment.name in absent:
                experiment.add_auxiliary_experiment(TRANSFERABLE, source)
                logger.info("Attached the old experiment %r.", source.experiment.name)

    def to_json(self) -> dict[str, Any]:
        """What Ax's storage keeps."""
        return {"__type": type(self).__name__, "names": self.names}

    def __deepcopy__(self, memo: Any) -> AuxiliaryHistory:
        return self

    def __repr__(self) -> str:
        return f"AuxiliaryHistory({self.names})"


def auxiliary_names(experiment: Experiment) -> list[str]:
    """The names of the old experiments that are attached to an experiment."""
    attached = experiment.auxiliary_experiments_by_purpose.get(TRANSFERABLE, [])
    return [auxiliary.experiment.name for auxiliary in attached]


def auxiliary_outcomes(sources: Sequence[AuxiliarySource], metric: str) -> np.ndarray | None:
    """All outcomes that old experiments have of a metric.

    Args:
        sources: The old experiments.
        metric: The new experiment's metric.

    Returns:
        An array of finite outcomes, ``None`` if no experiment has any.
    """
    found = []
    for source in sources:
        names = source.transfer_metric_config.get(metric, {metric})
        if not source.data.empty and names and names <= set(source.data.metric_names):
            found.append(source.data.filter(metric_names=names).df["mean"].to_numpy(dtype=float))
    outcomes = np.concatenate(found) if found else np.empty(0)
    outcomes = outcomes[np.isfinite(outcomes)]
    return outcomes if len(outcomes) else None


def attach_history(
    target: Client | Experiment, experiments: Sequence[Client | Experiment | AuxiliarySource]
) -> None:
    """Attaches old experiments to a new one, for its models to learn from.

    ``transfer_generation_strategy(history=[...])`` does so by itself. Call this after loading an
    experiment from a JSON file, as Ax's JSON storage leaves auxiliary experiments out; and for a
    client with a database, which keeps what is attached before the first trial.

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
    AuxiliaryHistory.from_experiments(experiments).attach(experiment_of(target))
    if isinstance(target, Client):
        save_again(target)
