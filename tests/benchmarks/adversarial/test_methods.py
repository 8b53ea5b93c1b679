from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.adversarial.histories import synthetic_problem
from benchmarks.adversarial.methods import plain, transferring
from benchmarks.studies.methods import optimization
from benchmarks.studies.run import Budget, run

PROBLEM = synthetic_problem("branin", "mixed", 0)
SMALL = replace(
    PROBLEM,
    X=PROBLEM.X[:40],
    Y=PROBLEM.Y[:40],
    history={name: PROBLEM.history[name] for name in list(PROBLEM.history)[:2]},
)


def test_every_method_runs():
    for name, method in (plain() | transferring()).items():
        record = run(SMALL, name, method, seed=0, budget=Budget(4, initial=3))
        assert record["error"] is None
        assert len(record["evaluations"]) == 4


@pytest.mark.parametrize("num_points", [9, 10])
def test_nothing_is_fitted_once_the_best_of_the_pool_is_found(num_points, monkeypatch):
    fitted = []
    monkeypatch.setattr(optimization, "fit_gpytorch_mll", lambda mll, **_: fitted.append(mll))
    best = SMALL.Y.argmax()
    rows = torch.cat([best.reshape(1), torch.arange(num_points)[torch.arange(num_points) != best]])
    X, Y = SMALL.X[rows[:num_points]], SMALL.Y[rows[:num_points]]
    assert len(X) == num_points
    x = plain()["plain GP"].suggest(SMALL, X, Y, seed=0)
    assert not (x == X).all(dim=-1).any()
    # The report after ten evaluations is about the model's own.
    assert bool(fitted) == (num_points < 10)


def test_as_long_as_it_is_not_found_models_are_fitted(monkeypatch):
    fitted = []
    monkeypatch.setattr(optimization, "fit_gpytorch_mll", lambda mll, **_: fitted.append(mll))
    worse = SMALL.Y.squeeze(-1).argsort()[:12]
    plain()["plain GP"].suggest(SMALL, SMALL.X[worse], SMALL.Y[worse], seed=0)
    assert len(fitted) == 1
