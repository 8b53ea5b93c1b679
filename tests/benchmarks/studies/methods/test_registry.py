from dataclasses import replace

import pytest
import torch

from benchmarks.studies.methods import METHODS, methods, models, registry
from benchmarks.studies.methods.optimization import THRIFTY, THRIFTY_JOINT
from tests.benchmarks.studies.toy import NOTHING, table


@pytest.fixture(autouse=True)
def _brief_fits(monkeypatch):
    monkeypatch.setattr(models, "PRETRAINING_STEPS", 3)
    monkeypatch.setattr(registry, "THRIFTY", replace(THRIFTY, max_iterations=3))
    monkeypatch.setattr(registry, "THRIFTY_JOINT", replace(THRIFTY_JOINT, max_iterations=3))


@pytest.mark.parametrize("name", METHODS)
def test_suggestions_are_allowed_new_and_reproducible(name):
    problem, X, Y = table(), *NOTHING
    method, twin = (methods([name], fitting="thrifty")[name] for _ in range(2))
    if method.initial_design:
        X = table().X[::5]
        Y = torch.tensor([[problem.evaluate(x)] for x in X], dtype=torch.double)
    suggested = []
    for each in (method, twin):
        torch.manual_seed(0)
        suggested.append(each.suggest(problem, X, Y, seed=3))
    x = suggested[0]
    assert torch.equal(x, suggested[1])
    X = torch.cat([X, x.unsqueeze(0)])
    Y = torch.cat([Y, torch.tensor([[problem.evaluate(x)]], dtype=torch.double)])
    assert not (method.suggest(problem, X, Y, seed=3) == X).all(dim=-1).any()
    assert not (x == X[:-1]).all(dim=-1).any()
