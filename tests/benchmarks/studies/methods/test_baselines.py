import pytest
import torch

from benchmarks.studies.methods.baselines import HistoryReplay, RandomSearch
from tests.benchmarks.studies.toy import history, live

NOTHING = torch.empty(0, 2, dtype=torch.double), torch.empty(0, 1, dtype=torch.double)


def winners() -> list[list[float]]:
    return [X[Y.argmax()].tolist() for X, Y in history().values()]


def test_random_search_is_uniform_and_depends_on_the_seed():
    draws = torch.stack([RandomSearch().suggest(live(), *NOTHING, seed) for seed in range(300)])
    assert draws.mean(dim=0) == pytest.approx(torch.full((2,), 0.5), abs=0.06)
    assert draws.var(dim=0) == pytest.approx(torch.full((2,), 1 / 12), abs=0.02)


def test_replay_takes_every_winner_once_and_then_random_points():
    problem, (X, Y) = live(), NOTHING
    for step in range(3):
        x = HistoryReplay().suggest(problem, X, Y, seed=step)
        X = torch.cat([X, x.unsqueeze(0)])
        Y = torch.cat([Y, torch.zeros(1, 1, dtype=torch.double)])
    assert sorted(X[:2].tolist()) == sorted(winners())
    assert X[2].tolist() not in winners()


def test_replay_order_depends_on_the_seed():
    firsts = {tuple(HistoryReplay().suggest(live(), *NOTHING, seed).tolist()) for seed in range(20)}
    assert firsts == set(map(tuple, winners()))
