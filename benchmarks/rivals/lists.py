"""Two fixed lists of rows: sorted by the mean rank in the old tasks, and a greedy portfolio."""

from __future__ import annotations

from typing import final

import numpy as np
from scipy.stats import rankdata

from benchmarks.rivals.worker import Rival


def losses(rival: Rival, ranks: bool) -> np.ndarray:
    """Computes the loss of each row of the pool on each old task, from the task's nearest row.

    Args:
        rival: The rival, which has the history and the pool.
        ranks: Whether losses are ranks. If not, losses are regrets divided by the task's range.

    Returns:
        An `M x N` array for `M` tasks and `N` rows; zero is the best loss, and one the worst.
    """
    found = []
    for X, y in rival.tasks.values():
        worse = rankdata(-y) - 1 if ranks else y.max() - y
        nearest = np.square(rival.rows[:, None] - X).sum(axis=-1).argmin(axis=1)
        found.append((worse / max(worse.max(), 1e-12))[nearest])
    return np.array(found)


@final
class Sorted(Rival):
    """Rival that chooses the unseen row with the best mean rank in the old tasks."""

    def prepare(self) -> None:
        """Ranks the rows of the pool."""
        self.scores = -losses(self, ranks=True).mean(axis=0)

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Chooses the next row of the list. Tied rows have a random order."""
        chance = np.random.default_rng(seed).random(len(self.scores))
        return self.best(self.scores + 1e-9 * chance, taken)


@final
class Portfolio(Rival):
    """Rival that adds the row which most lowers the portfolio's mean regret over the old tasks."""

    def prepare(self) -> None:
        """Computes the regret of each row in each old task."""
        self.regrets = losses(self, ranks=False)

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Chooses the next row of the portfolio. Tied rows are ordered by their own mean regret."""
        so_far = self.regrets[:, taken].min(axis=1, initial=1.0)
        mean = np.minimum(self.regrets, so_far[:, None]).mean(axis=0)
        return self.best(-mean - 1e-6 * self.regrets.mean(axis=0), taken)
