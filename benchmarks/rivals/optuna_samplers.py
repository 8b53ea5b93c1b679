"""Optuna's TPE and GPSampler, which start with the best row of each old task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.rivals.worker import Rival


class Sampler(Rival):
    """Rival that starts with each old task's best row, then uses an Optuna sampler."""

    sampler: ClassVar[Callable[..., BaseSampler]]

    def prepare(self) -> None:
        """Finds each old task's best row in the pool."""
        self.queue = [self.nearest(X[y.argmax()]) for X, y in self.tasks.values()]
        self.space: dict[str, Any] = dict.fromkeys(self.columns, FloatDistribution(0.0, 1.0))

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Adds all evaluated rows to a new study, and asks the sampler for the next row."""
        for row in self.queue:
            if row not in taken:
                return row
        study = optuna.create_study(direction="maximize", sampler=self.sampler(seed=seed))
        for row, value in zip(taken, y, strict=True):
            params: dict[str, Any] = dict(self.pool.iloc[row].clip(0.0, 1.0))
            trial = optuna.create_trial(params=params, distributions=self.space, value=value)
            study.add_trial(trial)
        asked = study.ask(self.space).params
        return self.nearest([asked[name] for name in self.columns], taken)


@final
class Tpe(Sampler):
    """The tree-structured Parzen estimator."""

    sampler = TPESampler


@final
class Gp(Sampler):
    """Optuna's Gaussian process."""

    sampler = GPSampler
