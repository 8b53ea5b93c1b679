"""One run: a method looks for the best point of a pool."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import process_time
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.studies.development.methods import PoolMethod
from benchmarks.studies.development.suites import Case
from benchmarks.studies.run import isolated

EVALUATIONS = 25
CALIBRATED_AT = (0, 1, 2, 5, 10, 20)
"""The numbers of points after which predictions are compared with all other outcomes."""
LEVEL = 0.9
_WIDTH = math.sqrt(2) * float(torch.erfinv(torch.tensor(LEVEL, dtype=torch.double)))


class Calibration(NamedTuple):
    """How honest predictions of unseen points are, observation noise included.

    Args:
        points: The number of points that the model knew.
        z: The root mean square of the z-scores.
        covered: The share of outcomes inside the central 90 % bands.
    """

    points: int
    z: float
    covered: float


@dataclass
class Run:
    """What a run left.

    Args:
        regrets: The regret after each evaluation.
        seconds: The processor time of each step; the first one's includes pre-training.
        calibration: How honest the model was.
    """

    regrets: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    calibration: list[Calibration] = field(default_factory=list)


def run(case: Case, method: PoolMethod, evaluations: int = EVALUATIONS) -> Run:
    """Evaluates points of a pool one by one, each where the method scores highest.

    Args:
        case: The pool and the history.
        method: The method.
        evaluations: The number of evaluations; of a smaller pool, all points.

    Returns:
        The run.
    """
    found = Run()
    seen: list[int] = []
    left = list(range(len(case.Y)))
    start = process_time()
    with isolated():
        prior = method.pretrain(case.history) if method.pretrain else None
        for number in range(min(evaluations, len(case.Y))):
            torch.manual_seed(number)
            if number < method.num_random:
                score = torch.from_numpy(case.generator.random(len(left)))
                spent = process_time() - start
            else:
                X, Y, pool = case.X[seen], case.Y[seen], case.X[left]
                model = method.model(X, Y, prior)
                with torch.no_grad():
                    score = method.score(model, Y, pool)
                spent = process_time() - start
                if number in CALIBRATED_AT:
                    found.calibration.append(calibration(model, pool, case.Y[left]))
            start = process_time()
            # Chance decides between equal scores: tables are sorted.
            chance = torch.from_numpy(case.generator.random(len(left)))
            seen.append(left.pop(int((score + 1e-12 * chance).argmax())))
            found.regrets.append(case.regret(float(case.Y[seen].max())))
            found.seconds.append(spent)
    return found


@torch.no_grad()
def calibration(model: SingleTaskGP, X: Tensor, Y: Tensor) -> Calibration:
    """Compares a model's predictions with outcomes that it has not seen.

    Args:
        model: The model.
        X: An `N x d` tensor of points.
        Y: An `N x 1` tensor of their outcomes.

    Returns:
        The comparison.
    """
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    z = (Y - posterior.mean[:, 0]) / posterior.variance[:, 0].sqrt()
    points = int(model.train_targets.shape[-1])
    covered = (z.abs() <= _WIDTH).double().mean()
    return Calibration(points, float(z.square().mean().sqrt()), float(covered))
