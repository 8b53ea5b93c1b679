"""Learning from failures: the model, the acquisition, and `suggest` with both."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, PosteriorMean
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from torch.special import ndtr

from botorch_transfer import FloatParameter, ScaMLGP, SearchSpace, suggest
from botorch_transfer.suggestion import read_study
from botorch_transfer.suggestion.outcomes import (
    MAX_OLD,
    VARIANCE,
    Attempts,
    FeasibilityModel,
    FeasibleAcquisition,
    learn_failures,
)
from tests.suggestion.brief_search import brief_search


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.double)


def rate(model: FeasibilityModel, X: torch.Tensor) -> torch.Tensor:
    return model.log_probability(X).exp()


TRIED = Attempts.of(tensor([0.1, 0.5], [0.9, 0.2]), tensor([0.5, 0.5], [0.52, 0.3]))
POINTS = tensor([0.5, 0.45], [0.5, 0.9], [0.65, 0.5], [0.1, 0.4], [0.3, 0.1])


def test_it_is_the_posterior_of_the_probit_model():
    """By importance sampling from the prior."""
    model = FeasibilityModel(*TRIED)
    A = torch.cat([TRIED.X, POINTS])
    K = model._covariance(A, A) + 1e-8 * torch.eye(len(A)).double()
    torch.manual_seed(0)
    f = model._mean(A) + torch.randn(400_000, len(A)).double() @ torch.linalg.cholesky(K).T
    weight = ndtr(torch.where(TRIED.succeeded, 1.0, -1.0) * f[:, :4]).prod(dim=-1)
    expected = (weight[:, None] * ndtr(f[:, 4:])).sum(dim=0) / weight.sum()
    torch.testing.assert_close(rate(model, POINTS), expected, atol=0.02, rtol=0.05)
    assert K.diagonal().max() == pytest.approx(VARIANCE)


def test_without_runs_it_is_the_prior():
    model = FeasibilityModel(TRIED.X[:0], TRIED.succeeded[:0])
    torch.testing.assert_close(rate(model, POINTS), torch.full((5,), 0.75).double())


def test_never_quite_zero_or_one_and_finite_with_gradients():
    torch.manual_seed(1)
    X = torch.rand(80, 3, dtype=torch.double).repeat(2, 1)
    for succeeded in (X[:, 0] < 0.5, torch.rand(160) < 0.5, torch.ones(160) > 0, X[:, 0] > 1):
        model = FeasibilityModel(X, succeeded)
        where = X[:40].clone().requires_grad_()
        log_p = model.log_probability(where)
        log_p.sum().backward()
        assert log_p.isfinite().all()
        assert (log_p < 0).all()
        assert where.grad is not None
        assert where.grad.isfinite().all()
    clear = FeasibilityModel(X, X[:, 0] < 0.5)
    right = rate(clear, X)
    assert (right[X[:, 0] < 0.4] > 0.7).all()
    assert (right[X[:, 0] > 0.6] < 0.3).all()


def test_old_runs_are_worth_a_few_runs():
    here = tensor([0.5, 0.5])
    many = Attempts.of(torch.rand(3, 2).double() * 0.1, here.repeat(5_000, 1))
    none = TRIED.X[:0], TRIED.succeeded[:0]
    old = FeasibilityModel(*none, old=many)
    assert len(old._old_X) == MAX_OLD
    assert 0.1 < rate(old, here).item() < 0.35  # (.75 · 1) / (4 + 1) = .15
    three = here + tensor([0.0, 0.0], [0.01, 0.0], [0.0, 0.01])
    own = FeasibilityModel(three, torch.ones(3) > 0, old=many)
    assert rate(own, here).item() > 0.7


def test_categories_and_bounds():
    bounds = tensor([0.0, 10.0], [4.0, 20.0])
    X, failed = tensor([1.0, 15.0], [3.0, 12.0]), torch.tensor([False, True])
    model = FeasibilityModel(X, failed, bounds=bounds, categorical=[0])
    near, far = rate(model, tensor([2.0, 15.0], [4.0, 15.0]))
    assert near.item() == pytest.approx(far.item())
    scaled = FeasibilityModel((X - bounds[0]) / (bounds[1] - bounds[0]), failed)
    unordered = FeasibilityModel(X, failed, bounds=bounds)
    torch.testing.assert_close(
        rate(unordered, X), rate(scaled, (X - bounds[0]) / (bounds[1] - bounds[0]))
    )


@pytest.mark.parametrize(
    ("X", "succeeded", "message"),
    [
        (tensor([0.1]), torch.tensor([True, False]), "2 successes or failures: give one for each"),
        (tensor([torch.nan]), torch.tensor([True]), "An input is NaN or infinite"),
    ],
)
def test_unfit_runs_are_refused(X, succeeded, message):
    with pytest.raises(InputDataError, match=message):
        FeasibilityModel(X, succeeded)


def test_the_logarithm_is_added_for_each_point():
    model = SingleTaskGP(TRIED.X, TRIED.X.sum(dim=-1, keepdim=True))
    feasibility = FeasibilityModel(*TRIED)
    for acquisition in (LogExpectedImprovement(model, 1.0), PosteriorMean(model)):
        value = FeasibleAcquisition(acquisition, feasibility)(POINTS.unsqueeze(-2))
        expected = acquisition(POINTS.unsqueeze(-2)) + feasibility.log_probability(POINTS)
        torch.testing.assert_close(value, expected)


def test_it_moves_as_a_module():
    model = FeasibilityModel(*TRIED, old=TRIED)
    expected = model.log_probability(TRIED.X)
    moved = model.float().log_probability(TRIED.X.float())
    assert moved.dtype == torch.float32
    torch.testing.assert_close(moved.double(), expected, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------ in suggest


SPACE = SearchSpace([FloatParameter("lr", 1e-4, 1.0, log=True), FloatParameter("wd", 0.0, 1.0)])


def loss(rows: pd.DataFrame, lr: float = -2.2) -> pd.Series:
    return (np.log10(rows["lr"]) - lr) ** 2 / 4 + (rows["wd"] - 0.5) ** 2


def _old_runs() -> pd.DataFrame:
    parts = [SPACE.sample(15, seed=seed).assign(task=f"task {seed}") for seed in range(2)]
    table = pd.concat(parts, ignore_index=True)
    return table.assign(loss=loss(table))


OLD = _old_runs()


@pytest.fixture
def _brief_search():
    with brief_search():
        yield


def in_strip(rows: pd.DataFrame) -> pd.Series:
    """A tenth of the space, beside the old optimum."""
    return rows["lr"].between(10**-2.1, 10**-1.7)


@pytest.mark.usefixtures("_brief_search")
def test_a_strip_that_fails_is_left():
    runs = pd.DataFrame()
    for _ in range(9):
        row = suggest(SPACE, OLD, runs, model=ScaMLGP)[SPACE.columns]
        row["loss"] = loss(row).mask(in_strip(row))
        row["status"] = np.where(in_strip(row), "failed", "ok")
        runs = pd.concat([runs, row], ignore_index=True)
    assert 1 <= (runs["status"] == "failed").sum() <= 3
    assert runs["loss"].min() < 0.02


@pytest.mark.usefixtures("_brief_search")
@pytest.mark.parametrize("column", ["none", "status"])
def test_old_failures_count_from_the_first_row_on(column):
    lost = SPACE.sample(30, seed=9).assign(task="task 0")
    lost["lr"] = 10 ** (-2.2 + 0.2 * np.log10(lost["lr"] / 1e-2))
    if column == "status":
        lost["status"] = "failed"
    history = pd.concat([OLD, lost], ignore_index=True)
    expected = suggest(SPACE, OLD, model=ScaMLGP)
    tables = read_study(SPACE, history)
    feasibility = learn_failures(tables.runs, tables.sources["loss"], tables.old_failed)
    assert feasibility.log_probability(SPACE.encode(expected)).item() < -0.5
    assert not suggest(SPACE, history, model=ScaMLGP).equals(expected)
    abandoned = suggest(SPACE, history.assign(status="abandoned"), model=ScaMLGP)
    pd.testing.assert_frame_equal(abandoned, expected)


@pytest.mark.usefixtures("_brief_search")
def test_pending_and_abandoned_runs_are_no_failures():
    """Only pending ones are awaited, and neither are suggested again."""
    runs = SPACE.sample(3, seed=4).assign(loss=[0.4, np.nan, np.nan])
    waiting, ended = (suggest(SPACE, OLD, table, model=ScaMLGP) for table in (runs, runs.head(1)))
    assert not ended.equals(waiting)
    states = {"pending": waiting, None: waiting, "abandoned": ended, "not measured": ended}
    for status, expected in states.items():
        row = suggest(SPACE, OLD, runs.assign(status=status), model=ScaMLGP)
        pd.testing.assert_frame_equal(row, expected)
    again = pd.concat([runs.head(1), ended[SPACE.columns].assign(status="abandoned")])
    other = suggest(SPACE, OLD, again, model=ScaMLGP)
    assert (SPACE.encode(other) - SPACE.encode(ended)).abs().max() > 1e-3


def test_inputs_of_failed_old_runs():
    table = OLD.assign(status="ok")
    table.loc[[0, 3], "loss"] = np.nan
    table.loc[1, "loss"] = np.inf
    table.loc[2, "status"] = "Failed"
    # All of a task without any success say nothing, nor does a run that lacks a value.
    other = SPACE.sample(2, seed=1).assign(task="never", loss=np.nan, status="failed")
    empty = SPACE.sample(1, seed=1).assign(task="task 0", loss=np.nan, status="failed", lr=np.nan)
    both = pd.concat([table, other, empty], ignore_index=True)
    expected = {"status": [1, 2], "no column": [0, 1, 3]}
    for status, rows in expected.items():
        found = read_study(SPACE, both, status=status).old_failed
        torch.testing.assert_close(found, SPACE.encode(table.iloc[rows]))
