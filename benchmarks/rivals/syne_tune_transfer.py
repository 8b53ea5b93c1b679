"""Syne Tune's transfer methods.

`ZeroShotTransfer.suggest` never calls its own `get_config`, so that is called here; with surrogates
it would draw other candidates for each task, so Syne Tune's surrogates predict the pool's rows.
`QuantileBasedSurrogateSearcher` draws 100,000 candidates, which the pool's rows replace. What
`BoundingBox` draws is a point of its box: the nearest row left is taken.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import pandas as pd
from syne_tune.config_space import uniform
from syne_tune.optimizer.baselines import RandomSearch
from syne_tune.optimizer.schedulers.transfer_learning import bounding_box, zero_shot
from syne_tune.optimizer.schedulers.transfer_learning.quantile_based import quantile_based_searcher

from benchmarks.rivals.worker import OUTCOME, TASK, Rival

METRIC = "loss"


class SyneTune(Rival):
    """What the three share: the old runs as Syne Tune takes them."""

    def prepare(self) -> None:
        """Minimizes the negative outcome."""
        self.space: dict[str, Any] = {name: uniform(0.0, 1.0) for name in self.columns}
        self.evaluations = {
            str(name): self.of(rows[self.columns], -rows[OUTCOME].to_numpy())
            for name, rows in self.history.groupby(TASK, sort=False)
        }

    def of(self, rows: pd.DataFrame, loss: np.ndarray) -> zero_shot.TransferLearningTaskEvaluations:
        """Evaluations of one task."""
        rows, outcomes = rows.reset_index(drop=True), loss.reshape(-1, 1, 1, 1)
        return zero_shot.TransferLearningTaskEvaluations(self.space, rows, [METRIC], outcomes)


def random_search(space: dict[str, Any], metric: str, *options: Any) -> RandomSearch:
    """Random search as `BoundingBox` asks for it."""
    return RandomSearch(space, [metric], *options)


@final
class ZeroShot(SyneTune):
    """Greedy by mean rank, the old tasks' outcomes at the pool's rows being predicted."""

    def prepare(self) -> None:
        """Predicts each old task at the pool's rows by Syne Tune's own surrogate."""
        super().prepare()
        predicted = {}
        for name, task in self.evaluations.items():
            regressor = zero_shot.xgboost.XGBRegressor()
            surrogate = zero_shot.BlackboxSurrogate.make_model_pipeline(self.space, {}, regressor)
            surrogate.fit(task.hyperparameters, task.objectives_evaluations[:, 0, 0, 0])
            predicted[name] = self.of(self.pool, surrogate.predict(self.pool))
        self.scheduler = zero_shot.ZeroShotTransfer(
            self.space, METRIC, predicted, sort_transfer_learning_evaluations=False
        )

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """The next of its list."""
        return self.nearest(list(self.scheduler.get_config().values()), taken)


@final
class Quantiles(SyneTune):
    """Thompson samples of a regression of the old tasks' quantiles."""

    def prepare(self) -> None:
        """Predicts the pool instead of random candidates."""
        super().prepare()
        searcher = quantile_based_searcher.QuantileBasedSurrogateSearcher(
            self.space, self.evaluations, random_seed=0
        )
        searcher.X_candidates = self.pool
        searcher.mu_pred = searcher.model_pipeline.predict(self.pool).reshape(-1, 1).astype(float)
        searcher.sigma_pred = searcher.sigma_pred[: len(self.pool)]  # it is the same everywhere
        self.searcher = searcher

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Its suggestion among the rows left."""
        self.searcher.mu_pred[taken] = np.inf
        return self.nearest(list(self.searcher.suggest().values()), taken)


@final
class Box(SyneTune):
    """Random points of the box around the old tasks' best."""

    def prepare(self) -> None:
        """Computes the box."""
        super().prepare()
        self.scheduler = bounding_box.BoundingBox(
            random_search, self.space, METRIC, self.evaluations, random_seed=0
        )

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """The row nearest to its suggestion."""
        return self.nearest(list(self.scheduler.suggest().config.values()), taken)
