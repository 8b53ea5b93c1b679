"""Syne Tune's transfer methods.

`ZeroShotTransfer.suggest` never calls its own `get_config`, so this module calls `get_config`. With
surrogates, `ZeroShotTransfer` would draw different candidates for each task, so Syne Tune's
surrogates predict the rows of the pool. `QuantileBasedSurrogateSearcher` draws 100,000 candidates,
which are replaced by the rows of the pool. `BoundingBox` draws a point of its box, which is
replaced by the nearest unseen row.
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
    """Base class of Syne Tune's methods, with the old runs in Syne Tune's format."""

    def prepare(self) -> None:
        """Converts the old runs to Syne Tune's format, with negative outcomes as losses."""
        self.space: dict[str, Any] = {name: uniform(0.0, 1.0) for name in self.columns}
        self.evaluations = {
            str(name): self.of(rows[self.columns], -rows[OUTCOME].to_numpy())
            for name, rows in self.history.groupby(TASK, sort=False)
        }

    def of(self, rows: pd.DataFrame, loss: np.ndarray) -> zero_shot.TransferLearningTaskEvaluations:
        """Converts one task to Syne Tune's format."""
        rows, outcomes = rows.reset_index(drop=True), loss.reshape(-1, 1, 1, 1)
        return zero_shot.TransferLearningTaskEvaluations(self.space, rows, [METRIC], outcomes)


def random_search(space: dict[str, Any], metric: str, *options: Any) -> RandomSearch:
    """Builds a random search with the arguments that `BoundingBox` passes."""
    return RandomSearch(space, [metric], *options)


@final
class ZeroShot(SyneTune):
    """Rival that chooses rows greedily by mean rank of the outcomes predicted for each old task."""

    def prepare(self) -> None:
        """Predicts each old task's outcomes at the rows of the pool with Syne Tune's surrogate."""
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
        """Chooses the next row of Syne Tune's list."""
        return self.nearest(list(self.scheduler.get_config().values()), taken)


@final
class Quantiles(SyneTune):
    """Rival that chooses rows by Thompson samples of a regression of the old tasks' quantiles."""

    def prepare(self) -> None:
        """Predicts the rows of the pool instead of random candidates."""
        super().prepare()
        searcher = quantile_based_searcher.QuantileBasedSurrogateSearcher(
            self.space, self.evaluations, random_seed=0
        )
        searcher.X_candidates = self.pool
        searcher.mu_pred = searcher.model_pipeline.predict(self.pool).reshape(-1, 1).astype(float)
        searcher.sigma_pred = searcher.sigma_pred[: len(self.pool)]  # sigma is constant
        self.searcher = searcher

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Chooses the row with the best sample among the unseen rows."""
        self.searcher.mu_pred[taken] = np.inf
        return self.nearest(list(self.searcher.suggest().values()), taken)


@final
class Box(SyneTune):
    """Rival that chooses random points of the bounding box of the old tasks' best points."""

    def prepare(self) -> None:
        """Computes the box."""
        super().prepare()
        self.scheduler = bounding_box.BoundingBox(
            random_search, self.space, METRIC, self.evaluations, random_seed=0
        )

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Chooses the row nearest to a random point of the box."""
        return self.nearest(list(self.scheduler.suggest().config.values()), taken)
