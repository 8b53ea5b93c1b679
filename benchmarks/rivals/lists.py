"""Two lists without a model: rows by their mean rank in the old tasks, and a greedy portfolio."""

from __future__ import annotations

from typing import final

import numpy as np
from scipy.stats import rankdata

from benchmarks.rivals.worker import Rival


def losses(rival: Rival, ranks: bool) -> np.ndarray:
    """What each old task says of each row of the pool: the loss of its own nearest row.

    Args:
        rival: It has the history and the pool.
        ranks: Whether losses are ranks; otherwise regrets in units of the task's range.

    Returns:
        An `M x N` array, zero the best and one the worst.
    """
    found = []
    for X, y in rival.tasks.values():
        worse = rankdata(-y) - 1 if ranks else y.max() - y
        nearest = np.square(rival.rows[:, None] - X).sum(axis=-1).argmin(axis=1)
        found.append((worse / max(worse.max(), 1e-12))[nearest])
    return np.array(found)


@final
class Sorted(Rival):
    """The row left with the best mean rank in the old tasks."""

    def prepare(self) -> None:
        """Ranks the pool."""
        self.scores = -losses(self, ranks=True).mean(axis=0)

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """The next of the list; chance decides between equals."""
        chance = np.random.default_rng(seed).random(len(self.scores))
        return self.best(self.scores + 1e-9 * chance, taken)


@final
class Portfolio(Rival):
    """The row that most improves the old tasks' mean regret of the best row so far."""

    def prepare(self) -> None:
        """Finds the regret of each row in each old task."""
        self.regrets = losses(self, ranks=False)

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """The next of the portfolio; a row's own mean regret decides between equals."""
        so_far = self.regrets[:, taken].min(axis=1, initial=1.0)
        mean = np.minimum(self.regrets, so_far[:, None]).mean(axis=0)
        return self.best(-mean - 1e-6 * self.regrets.mean(axis=0), taken)
