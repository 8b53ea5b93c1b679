from __future__ import annotations

import pytest
import torch

from benchmarks.competitors import HandTunedGP, RobustMetaUCB
from benchmarks.studies.methods.competitors import CompetitorMethod
from tests.benchmarks.studies import toy

EMPTY = torch.empty(0, 2, dtype=torch.double), torch.empty(0, 1, dtype=torch.double)


@pytest.mark.parametrize("problem", [toy.live(), toy.table()], ids=lambda p: p.name)
def test_points_are_suggested_in_the_cube_and_of_the_table(problem):
    method = CompetitorMethod(RobustMetaUCB)
    assert not method.initial_design
    first = method.suggest(problem, *EMPTY, seed=0)
    X = first.unsqueeze(0)
    Y = torch.tensor([[problem.evaluate(first)]], dtype=torch.double)
    second = method.suggest(problem, X, Y, seed=1)
    assert not torch.equal(first, second)
    assert ((second >= 0) & (second <= 1)).all()
    assert torch.equal(second, method.suggest(problem, X, Y, seed=1))


def test_failures_are_the_worst_value(monkeypatch):
    seen = {}

    def acquisition(self, X, Y):
        seen["Y"] = Y
        return real(self, X, Y)

    real = HandTunedGP.acquisition
    monkeypatch.setattr(HandTunedGP, "acquisition", acquisition)
    method = CompetitorMethod(HandTunedGP)
    X = torch.rand(3, 2, dtype=torch.double)
    Y = torch.tensor([[1.0], [float("nan")], [-2.0]], dtype=torch.double)
    method.suggest(toy.live(), X, Y, seed=0)
    assert seen["Y"].flatten().tolist() == [1.0, -2.0, -2.0]


def test_without_any_value_a_competitor_that_needs_one_draws_at_random():
    method = CompetitorMethod(HandTunedGP)
    assert method.initial_design
    x = method.suggest(toy.live(), *EMPTY, seed=0)
    assert x.shape == (2,)


def test_it_is_built_once_a_history(monkeypatch):
    built = []
    real = RobustMetaUCB.build.__func__

    def build(cls, history, bounds, seed):
        built.append(seed)
        return real(cls, history, bounds, seed)

    monkeypatch.setattr(RobustMetaUCB, "build", classmethod(build))
    method = CompetitorMethod(RobustMetaUCB, seed=11)
    for _ in range(2):
        method.suggest(toy.table(), *EMPTY, seed=0)
    assert built == [11]
