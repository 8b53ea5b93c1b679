"""Old studies and histories for the tests of the sampler."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from pandas import DataFrame

from botorch_transfer import ScaMLGP
from botorch_transfer.old_studies import history_of
from botorch_transfer.optuna import OptunaHistory, TransferSampler

Objective = Callable[[optuna.Trial], Any]

optuna.logging.set_verbosity(optuna.logging.ERROR)


def old_study(objective: Objective, name: str, trials: int = 8, **options: Any) -> optuna.Study:
    """A study of random trials."""
    seed = sum(map(ord, name))
    sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(study_name=name, sampler=sampler, **options)
    study.optimize(objective, n_trials=trials)
    return study


def tuned(objective: Objective, trials: int, transfer: Any, **options: Any) -> optuna.Study:
    """A new study of the sampler."""
    study = optuna.create_study(sampler=transfer, **options)
    study.optimize(objective, n_trials=trials)
    return study


def drawn_history(distributions: Mapping[str, BaseDistribution]) -> OptunaHistory:
    """Two old studies of some distributions, whose outcome is the sum of ranks."""
    studies = []
    for seed, name in enumerate(["monday", "tuesday"]):
        draws = optuna.samplers.RandomSampler(seed=seed)
        study = optuna.create_study(study_name=name, sampler=draws)
        for _ in range(5):
            trial = study.ask(dict(distributions))
            values = [d.to_internal_repr(trial.params[n]) for n, d in distributions.items()]
            study.tell(trial, float(np.sum(values)))
        studies.append(study)
    return history_of(studies)


def table() -> DataFrame:
    """Old runs of one parameter in [0, 1], best near 0.3."""
    x = np.linspace(0.0, 1.0, 8)
    values = [(x - 0.25) ** 2, 2 * (x - 0.35) ** 2]
    frames = {"monday": values[0], "tuesday": values[1]}
    rows = [
        {"task": task, "x": float(at), "value": float(value)}
        for task, outcomes in frames.items()
        for at, value in zip(x, outcomes, strict=True)
    ]
    return DataFrame(rows)


UNIT = {"x": FloatDistribution(0.0, 1.0)}


def add(study: optuna.Study, x: float, **options: Any) -> None:
    """Adds a trial of `x`."""
    study.add_trial(create_trial(params={"x": x}, distributions=UNIT, **options))


def sampler(**options: Any) -> TransferSampler:
    """A sampler of `x` with the table as its history, and a fast model."""
    return TransferSampler(**{"history": table(), "model": ScaMLGP, "space": UNIT, **options})


def states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.trials]
