import pytest
import torch

from benchmarks.studies.methods.baselines import HistoryReplay, SortedRows
from tests.benchmarks.studies.toy import NOTHING, history, live, table


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


def test_sorted_takes_rows_by_the_mean_rank_of_the_nearest_old_rows():
    ranks = []
    for X, Y in history().values():
        nearest = [min(range(len(X)), key=lambda i: float((X[i] - x).norm())) for x in table().X]
        ranks.append(torch.stack([Y.lt(Y[i]).double().mean() for i in nearest]))
    expected = torch.stack(ranks).mean(dim=0).sort(descending=True).values
    taken = NOTHING[0]
    for _ in range(4):
        x = SortedRows().suggest(table(), taken, NOTHING[1], seed=0)
        taken = torch.cat([taken, x.unsqueeze(0)])
    rows = [table().X.eq(x).all(dim=-1).nonzero().item() for x in taken]
    found = torch.stack(ranks).mean(dim=0)[rows]
    assert found == pytest.approx(expected[:4])
