import math
from dataclasses import replace

import pytest
import torch
from botorch.acquisition import PosteriorMean
from botorch.models import SingleTaskGP
from botorch.utils.datasets import SupervisedDataset

from benchmarks.studies import TableProblem
from benchmarks.studies.problems import subsample_history
from tests.benchmarks.studies.toy import history, live, table

NOTHING = torch.empty(0, 2, dtype=torch.double)


def test_table_gives_each_row_once():
    problem = table(n=3)
    seen = NOTHING
    for _ in range(9):
        x = problem.nearest(torch.tensor([0.5, 0.5], dtype=torch.double), seen)
        assert not (seen == x).all(dim=-1).any()
        assert problem.evaluate(x) == pytest.approx(-float((x - 0.4).square().sum()))
        seen = torch.cat([seen, x.unsqueeze(0)])
    with pytest.raises(ValueError, match="All 9 rows of 'grid' have been evaluated"):
        problem.nearest(x, seen)


@pytest.mark.parametrize("problem", [live(), table()], ids=["live", "table"])
@pytest.mark.parametrize("num_points", [0, 1, 9])
def test_designs_grow_without_repetition(problem, num_points):
    design = problem.design(num_points, seed=3)
    assert design.shape == (num_points, 2)
    assert len(design.unique(dim=0)) == num_points
    assert torch.equal(problem.design(10, seed=3)[:num_points], design)


def test_table_refuses_points_that_it_does_not_have():
    with pytest.raises(ValueError, match="table of 'grid' has no row at"):
        table().evaluate(torch.tensor([0.123, 0.5], dtype=torch.double))


def test_table_refuses_equal_rows():
    with pytest.raises(ValueError, match="table of 'twice' has equal rows of X: merge them"):
        TableProblem("twice", torch.zeros(2, 1), torch.zeros(2, 1))


@pytest.mark.parametrize("problem", [live(), table()], ids=["live", "table"])
def test_maximizer_of_the_acquisition_is_found(problem):
    X = table(n=4).X
    top = torch.tensor([0.8, 0.2], dtype=torch.double)
    model = SingleTaskGP(X, -(X - top).square().sum(dim=-1, keepdim=True))
    x = problem.maximize(PosteriorMean(model), NOTHING, seed=0)
    assert x == pytest.approx(top, abs=0.03)


def test_history_is_subsampled_without_replacement_and_by_seed():
    full = history(n=8)
    small = subsample_history(full, 5, seed=0)
    assert list(small) == list(full)
    for name, task in small.items():
        assert isinstance(task, SupervisedDataset)
        rows = [full[name][0].tolist().index(x) for x in task.X.tolist()]
        assert rows == sorted(set(rows))
        assert len(rows) == 5
        assert torch.equal(task.Y, full[name][1][rows])
    again, other = (subsample_history(full, 5, seed) for seed in (0, 1))
    assert torch.equal(small["source 0"].X, again["source 0"].X)
    assert not torch.equal(small["source 0"].X, other["source 0"].X)


def test_known_noise_is_subsampled_too():
    X, Y = history()["source 0"]
    Yvar = torch.arange(1.0, 9.0, dtype=torch.double).unsqueeze(-1)
    (task,) = subsample_history({"a": (X, Y, Yvar)}, 3, seed=0).values()
    rows = [X.tolist().index(x) for x in task.X.tolist()]
    assert torch.equal(task.Yvar, Yvar[rows])


def test_a_run_can_have_some_of_the_sources():
    problem = replace(table(), history=history(num_tasks=6), num_sources=2)
    chosen = {tuple(problem.instance(seed, None).history) for seed in range(20)}
    assert len(chosen) > 3
    assert all(len(names) == 2 for names in chosen)
    again = problem.instance(3, 5)
    assert list(again.history) == list(problem.instance(3, None).history)
    assert [len(task.Y) for task in again.history.values()] == [5, 5]
    assert table().instance(3, None).history.keys() == history().keys()


def test_matching_histories_stay_matching():
    problem = replace(table(), matching=True)
    for seed in range(3):
        one, other = problem.instance(seed, 4).history.values()
        assert torch.equal(one.X, other.X)
        assert not torch.equal(one.Y, other.Y)


def test_what_was_left_out_of_a_table_counts_for_regret():
    assert replace(table(), elsewhere=3.0).best_known == 3.0
    assert replace(table(), elsewhere=-3.0).best_known == table().best_known


def test_landmarks_of_a_table():
    X = torch.tensor([[0.0], [0.3], [0.6], [1.0]])
    Y = torch.tensor([[1.0], [torch.nan], [2.0], [7.0]])
    assert TableProblem("t", X, Y).landmarks == (1.0, 2.0)
    assert all(map(math.isnan, live().landmarks))


@pytest.mark.parametrize(
    "change",
    [{"num_sources": 1}, {"matching": True}, {"elsewhere": 3.0}, {"name": "x"}, {"history": {}}],
    ids=str,
)
def test_keys_of_tables_follow_what_their_runs_depend_on(change):
    assert replace(table(), **change).key() != table().key() == table().key()


@pytest.mark.parametrize(
    "change",
    [{"noise_std": 0.1}, {"best_known": 3.0}, {"landmarks": (0.0, 1.0)}, {"history": {}}],
    ids=str,
)
def test_keys_of_live_problems_follow_what_their_runs_depend_on(change):
    assert replace(live(), **change).key() != live().key() == live().key()
