import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.models import SingleTaskGP

from benchmarks.studies.methods import (
    METHODS,
    BayesianOptimization,
    HistoryReplay,
    RandomSearch,
    log_ei_or_ucb,
    plain_gp,
    with_failures_worst,
)
from botorch_transfer import ScaMLGP
from botorch_transfer.palette import STYLES
from tests.benchmarks.studies.toy import history, live, table

NOTHING = torch.empty(0, 2, dtype=torch.double), torch.empty(0, 1, dtype=torch.double)


def winners() -> list[list[float]]:
    return [X[Y.argmax()].tolist() for X, Y in history().values()]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("problem", [live(), table()], ids=["live", "table"])
def test_suggestions_are_allowed_new_and_reproducible(name, problem):
    method = METHODS[name]
    X, Y = NOTHING
    if method.initial_design:
        X = table().X[::5]
        Y = torch.tensor([[problem.evaluate(x)] for x in X], dtype=torch.double)
    x = method.suggest(problem, X, Y, seed=3)
    assert x.shape == (2,)
    assert x.dtype == torch.double
    assert x.min() >= 0
    assert x.max() <= 1
    assert not (x == X).all(dim=-1).any()
    problem.evaluate(x)
    torch.manual_seed(0)
    first = method.suggest(problem, X, Y, seed=3)
    torch.manual_seed(0)
    assert torch.equal(method.suggest(problem, X, Y, seed=3), first)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_style_of_its_own(name):
    assert list(STYLES.values()).count(STYLES[name]) == 1


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


def test_transfer_without_target_data_finds_the_optimum_of_the_sources():
    x = METHODS["ScaML-GP"].suggest(live(), *NOTHING, seed=0)
    model = ScaMLGP(*NOTHING, history())
    grid = table(n=20).X.unsqueeze(1)
    bound = log_ei_or_ucb(model, NOTHING[1])
    with torch.no_grad():
        assert bound(x.reshape(1, 1, 2)) >= bound(grid).max() - 1e-6


def test_acquisition_is_ucb_without_data_and_log_ei_with():
    X, Y = history()["source 0"]
    model = SingleTaskGP(X, Y)
    assert isinstance(log_ei_or_ucb(model, Y[:0]), UpperConfidenceBound)
    acquisition = log_ei_or_ucb(model, Y)
    assert isinstance(acquisition, LogExpectedImprovement)
    assert acquisition.best_f == Y.max()


def test_failures_get_the_worst_value_so_far():
    X = torch.rand(3, 2)
    Y = torch.tensor([[1.0], [torch.nan], [-2.0]])
    usable_X, usable_Y = with_failures_worst(X, Y)
    assert torch.equal(usable_X, X)
    assert usable_Y.flatten().tolist() == [1.0, -2.0, -2.0]
    assert [len(tensor) for tensor in with_failures_worst(X, torch.full((3, 1), torch.nan))] == [
        0,
        0,
    ]


@pytest.mark.parametrize("name", METHODS)
def test_methods_go_on_where_everything_has_failed(name):
    X = torch.rand(2, 2, dtype=torch.double)
    x = METHODS[name].suggest(live(), X, torch.full((2, 1), torch.nan, dtype=torch.double), seed=0)
    assert x.isfinite().all()


def test_plain_gp_ignores_the_history():
    method = BayesianOptimization(plain_gp, log_ei_or_ucb, initial_design=True)
    X, Y = history(n=5)["source 0"]
    suggestions = []
    for problem in (live(), live().subsample(1, seed=0)):
        torch.manual_seed(0)
        suggestions.append(method.suggest(problem, X, Y, seed=0))
    assert torch.equal(*suggestions)
