"""Ax's own transfer learning: `Generators.BOTL` with auxiliary experiments, on the rows of a pool.

Ax's choice between BOTL and a plain Gaussian process by cross-validation is left out.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from ax.adapter.registry import Generators
from ax.adapter.transfer_learning import adapter as transfer
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.experiment import Experiment
from ax.core.observation import ObservationFeatures

from benchmarks.rivals.worker import OUTCOME, Rival


@final
class Botl(Rival):
    """Rival that chooses the row with the largest acquisition value of Ax's multi-task GP."""

    def prepare(self) -> None:
        """Converts each old task to an Ax experiment."""
        tasks = self.tasks.items()
        self.sources: list[Any] = [AuxiliarySource(self.experiment(n, *data)) for n, data in tasks]

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Fits the model and scores the pool."""
        experiment = self.experiment("target", self.rows[taken], y)
        experiment.auxiliary_experiments_by_purpose = {transfer.TL_EXP: self.sources}
        options = transfer.transfer_learning_generator_specs_constructor()[0][0].generator_kwargs
        data = experiment.lookup_data()
        adapter: Any = Generators.BOTL(experiment=experiment, data=data, **options)
        features = [ObservationFeatures(parameters=row) for row in self.configs(self.rows)]
        return self.best(np.array(adapter.evaluate_acquisition_function(features)), taken)

    def configs(self, X: np.ndarray) -> list[dict[str, Any]]:
        """Converts rows to Ax's parameter configurations."""
        rows = np.clip(X, 0.0, 1.0).tolist()
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def experiment(self, name: str, X: np.ndarray, y: np.ndarray) -> Experiment:
        """Builds an experiment with one finished trial for each row."""
        client = Client()
        space = [RangeParameterConfig(name, (0.0, 1.0), "float") for name in self.columns]
        client.configure_experiment(space, name=name)
        client.configure_optimization(OUTCOME)
        for row, value in zip(self.configs(X), y.tolist(), strict=True):
            client.complete_trial(client.attach_trial(row), {OUTCOME: value})
        return client._experiment
