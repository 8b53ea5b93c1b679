"""OpenBox's advisor with surrogates of old tasks, which starts with three of their best rows.

The advisor's acquisition function is evaluated on the rows of the pool. The advisor's first
configurations, and every tenth configuration, which is random, are replaced by the nearest unseen
row.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np
from ConfigSpace import Configuration
from openbox import Advisor, History, Observation, space

from benchmarks.rivals.worker import Rival


class Advised(Rival):
    """Base class of rivals with OpenBox's advisor; a subclass sets the surrogate."""

    surrogate: ClassVar[str]

    def prepare(self) -> None:
        """Converts the old tasks to OpenBox histories, and creates the advisor."""
        self.space = space.Space()
        self.space.add_variables([space.Real(name, 0.0, 1.0) for name in self.columns])
        self.choices = [self.configuration(x) for x in self.rows]
        histories = [History(task_id=name, config_space=self.space) for name in self.tasks]
        for history, (X, y) in zip(histories, self.tasks.values(), strict=True):
            for x, value in zip(X, y, strict=True):
                history.update_observation(Observation(self.configuration(x), [-value]))
        options = {"surrogate_type": self.surrogate, "random_state": 1, "output_dir": None}
        self.advisor = Advisor(self.space, transfer_learning_history=histories, **options)
        self.advisor.acq_optimizer = self

    def configuration(self, x: np.ndarray) -> Configuration:
        """Converts a row to a configuration."""
        values = zip(self.columns, np.clip(x, 0.0, 1.0).tolist(), strict=True)
        return Configuration(self.space, dict(values))

    def maximize(self, acquisition_function: Any, **_: Any) -> list[Configuration]:
        """Sorts all rows by acquisition value, best first; replaces OpenBox's search."""
        scores = np.asarray(acquisition_function(self.choices)).flatten()
        return [self.choices[row] for row in np.argsort(-scores)]

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Gives the new outcomes to the advisor, and asks for the next row."""
        for n in range(len(self.advisor.history), len(taken)):
            self.advisor.update_observation(Observation(self.choices[taken[n]], [-y[n]]))
        asked = self.advisor.get_suggestion()
        return self.nearest([asked[name] for name in self.columns], taken)


@final
class Rgpe(Advised):
    """Rank-weighted Gaussian processes, OpenBox's default for few numerical columns."""

    surrogate = "tlbo_rgpe_gp"


@final
class Topo(Advised):
    """Gaussian processes with the weights of TransBO."""

    surrogate = "tlbo_topov3_gp"
