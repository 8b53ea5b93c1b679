"""Old Ax experiments in the plain space, or one that is much like it."""

from typing import Any

import numpy as np
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.experiment import Experiment

from botorch_transfer.ax_experiments import experiment_of
from tests.ax.conftest import Space, attach_completed, plain_loss, plain_space

C, GAMMA = plain_space()
COST = RangeParameterConfig("cost", (1e-2, 1e3), parameter_type="float", scaling="log")
WIDE = RangeParameterConfig("C", (1e-4, 1e5), parameter_type="float", scaling="log")
SHRINK = RangeParameterConfig("shrink", (0.0, 1.0), parameter_type="float")


def old_experiment(
    space: Space,
    metric: str = "loss",
    baseline: dict[str, float] | None = None,
    name: str | None = "old",
    level: float = 0.0,
    sem: float | None = None,
    odd: float | tuple[float, float] | None = None,
) -> Experiment:
    """An experiment of nine runs, whose outcomes lie about a level of their own; made once.

    A tenth one has an odd outcome, if that is given.
    """
    key = repr((space, metric, baseline, name, level, sem, odd))
    if key not in _made:
        _made[key] = _make(space, metric, baseline, name, level, sem, odd)
    return _made[key]


_made: dict[str, Experiment] = {}


def _make(
    space: Space,
    metric: str,
    baseline: dict[str, float] | None,
    name: str | None,
    level: float,
    sem: float | None,
    odd: float | tuple[float, float] | None,
) -> Experiment:
    client, rng = Client(), np.random.default_rng(0)
    client.configure_experiment(space, name=name)
    client.configure_optimization(f"-{metric}")
    if baseline is not None:
        client.attach_baseline(baseline)
    runs = []
    for _ in range(9):
        config: dict[str, Any] = {
            p.name: float(
                10 ** rng.uniform(*np.log10(p.bounds))
                if p.scaling == "log"
                else rng.uniform(*p.bounds)
            )
            for p in space
        }
        known = {"C": config.get("C", config.get("cost")), "gamma": config.get("gamma", 0.01)}
        loss = plain_loss(known, 0.0) + config.get("shrink", 0.0) + level
        outcome = loss if sem is None else (loss, sem)
        runs.append((config, {metric: outcome}))
    if odd is not None:
        runs.append((config, {metric: odd}))
    attach_completed(client, runs)
    return experiment_of(client)
