from __future__ import annotations

from dataclasses import replace

import torch
from botorch.models import SingleTaskGP

from benchmarks.adversarial import methods
from benchmarks.adversarial.histories import synthetic_problem
from benchmarks.adversarial.methods import ThriftyOptimization, plain, transferring
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
        record = run(SMALL, name, method, seed=0, budget=Budget(5, initial=3))
        assert record["error"] is None
        assert len(record["evaluations"]) == 5


def test_fits_at_every_step_first_and_then_at_every_fourth(monkeypatch):
    fitted = []
    fit = methods.fit_gpytorch_mll
    monkeypatch.setattr(
        methods,
        "fit_gpytorch_mll",
        lambda mll, **options: fitted.append(len(mll.model.train_targets)) or fit(mll, **options),
    )
    method = ThriftyOptimization(lambda X, Y, problem: SingleTaskGP(X, Y), initial_design=True)
    X, Y = PROBLEM.X[:16], PROBLEM.Y[:16]
    for n in range(8, 17):
        model = method.model(PROBLEM, X[:n], Y[:n])
        assert len(model.train_targets) == n
    assert fitted == [8, 9, 10, 14]
    lengthscale = model.covar_module.lengthscale
    fourteen = method._fitted[1]["covar_module.raw_lengthscale"]
    assert torch.equal(model.covar_module.raw_lengthscale, fourteen)
    assert lengthscale.isfinite().all()
    method.model(PROBLEM, X.flip(0)[:13], Y.flip(0)[:13])  # another run
    assert fitted[-1] == 13


def test_stops_to_fit_once_the_best_of_the_pool_is_found(monkeypatch):
    method = ThriftyOptimization(lambda X, Y, problem: None, initial_design=True)
    best = SMALL.Y.argmax()
    rows = torch.cat([best.reshape(1), torch.arange(12)[torch.arange(12) != best]])
    x = method.suggest(SMALL, SMALL.X[rows], SMALL.Y[rows], seed=0)
    assert not (x == SMALL.X[rows]).all(dim=-1).any()
