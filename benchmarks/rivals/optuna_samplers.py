"""Optuna's TPE and GPSampler: the history's best are enqueued, then the sampler goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.rivals.worker import Rival


class Sampler(Rival):
    """The best row of each old task, then what the sampler asks for, the nearest row left."""

    sampler: ClassVar[Callable[..., BaseSampler]]

    def prepare(self) -> None:
        """Finds each old task's best row in the pool."""
        self.queue = [self.nearest(X[y.argmax()]) for X, y in self.tasks.values()]
        self.space: dict[str, Any] = dict.fromkeys(self.columns, FloatDistribution(0.0, 1.0))

    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Tells a new study the rows so far, and asks it."""
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
