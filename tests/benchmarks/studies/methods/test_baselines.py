import torch

from benchmarks.studies.methods.baselines import HistoryReplay
from tests.benchmarks.studies.toy import NOTHING, history, live


def winners() -> list[list[float]]:
    return [X[Y.argmax()].tolist() for X, Y in history().values()]


def test_replay_takes_every_winner_once_and_then_random_points():
    problem, (X, Y) = live(), NOTHING
    for step in range(3):
        x = HistoryReplay().suggest(problem, X, Y, seed=step)
        X = torch.cat([X, x.unsqueeze(0)])
        Y = torch.cat([Y, torch.zeros(1, 1, dtype=torch.double)])
    assert sorted(X[:2].tolist()) == sorted(winners())
    assert X[2].tolist() not in winners()
