"""OpenBox's advisor with its surrogates of old tasks; it begins with three of their best rows.

The advisor's acquisition is scored over the pool instead of being searched in the cube. Its first
configurations and every tenth, random one become the nearest row left.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np
from ConfigSpace import Configuration
from openbox import Advisor, History, Observation, space

from benchmarks.rivals.worker import Rival


class Advised(Rival):
    """What the surrogates share."""

    surrogate: ClassVar[str]

    def prepare(self) -> None:
        """Makes histories of the old tasks, and an advisor."""
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
        """A row as a configuration."""
        values = zip(self.columns, np.clip(x, 0.0, 1.0).tolist(), strict=True)
        return Configuration(self.space, dict(values))

    def maximize(self, acquisition_function: Any, **_: Any) -> list[Configuration]:
        """In the place of OpenBox's search: all rows, the best first."""
        scores = np.asarray(acquisition_function(self.choices)).flatten()
        return [self.choices[row] for row in np.argsort(-scores)]

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Tells what is new and asks."""
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
