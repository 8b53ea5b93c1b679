"""BayBE: a campaign over the rows of a pool, with a task parameter and BayBE's defaults."""

from __future__ import annotations

from typing import final

import numpy as np
import pandas as pd
from baybe import Campaign
from baybe.parameters import NumericalDiscreteParameter, TaskParameter
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget

from benchmarks.rivals.worker import OUTCOME, TASK, Rival

TARGET = "target"


@final
class Baybe(Rival):
    """Rival that takes the recommendation of a BayBE campaign over the pool."""

    def prepare(self) -> None:
        """Adds the old runs to the campaign as measurements of other tasks."""
        both = pd.concat([self.history[self.columns], self.pool])
        columns = [name for name in both if both[name].nunique() > 1]
        self.choices = self.pool[columns].assign(**{TASK: TARGET})
        parameters = [
            *(NumericalDiscreteParameter(name, sorted(set(both[name]))) for name in columns),
            TaskParameter(TASK, [TARGET, *self.tasks], active_values=[TARGET]),
        ]
        space = SearchSpace.from_dataframe(self.choices, parameters)
        self.campaign = Campaign(space, NumericalTarget(OUTCOME).to_objective())
        self.campaign.add_measurements(self.history[[*columns, TASK, OUTCOME]])

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Adds the new outcomes to the campaign, and asks for the next row."""
        if new := taken[len(self.campaign.measurements) - len(self.history) :]:
            measured = self.choices.iloc[new].assign(**{OUTCOME: y[-len(new) :]})
            self.campaign.add_measurements(measured)
        return int(self.campaign.recommend(batch_size=1).index[0])
