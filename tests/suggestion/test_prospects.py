"""Why a row is suggested, and when to stop."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.models import SingleTaskGP
from torch.distributions import Normal

from botorch_transfer import FloatParameter, SearchSpace
from botorch_transfer.feasibility import FeasibilityModel
from botorch_transfer.suggestion import Outcome, Suggestion, read_study, suggest_rows
from botorch_transfer.suggestion.next_rows import short
from botorch_transfer.suggestion.outcomes import moments

pytestmark = pytest.mark.usefixtures("_brief_search")

C = SearchSpace([FloatParameter("C", 0.0, 1.0)])


def study(runs, **options):
    """Tables without a history."""
    return read_study(C, None, pd.DataFrame(runs), **options)


def test_the_best_run_is_complete_and_feasible():
    runs = {"C": [0.1, 0.2, 0.3, 0.4], "loss": [1.0, 2.0, 3.0, 4.0], "memory": [9, 9, 2, 1]}
    assert study(runs).best_run() == 0
    assert study(runs, constraints=["memory <= 5"]).best_run() == 2
    assert study(runs, constraints=["memory <= 0"]).best_run() is None
    tables = study(runs | {"status": ["failed", "", "", ""]})
    assert tables.runs.X[tables.best_run()].item() == pytest.approx(0.2)
    stopped = study(runs).runs._replace(added=torch.tensor([[1.0], [0.0], [0.0], [0.0]]))
    assert study(runs)._replace(runs=stopped).best_run() == 1
    all_stopped = stopped._replace(added=torch.ones(4, 1))
    assert study(runs)._replace(runs=all_stopped).best_run() == 0


def test_gains_of_runs_that_fail_or_violate_a_limit_do_not_count():
    X = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.double)
    model, memory = SingleTaskGP(X, X), SingleTaskGP(X, -X)
    limit = Outcome("memory", -1.0, limit=-0.5)
    tables = study({"C": [0.1], "loss": [0.3]})
    rows = pd.DataFrame()
    free = Suggestion(rows, {"loss": model}, X, tables).improvements(X, X[0, 0])
    both = tables._replace(outcomes=[tables.outcomes[0], limit])
    models = {"loss": model, "memory": memory}
    limited = Suggestion(rows, models, X, both).improvements(X, X[0, 0])
    mean, variance = moments(memory, X)
    kept = 1 - Normal(mean, variance.sqrt()).cdf(mean.new_tensor(-0.5))
    assert limited[1] == pytest.approx(free[1] * kept.numpy())
    failures = FeasibilityModel(X[:2], X[2:])
    risky = Suggestion(rows, {"loss": model}, X, tables, failures).improvements(X, X[0, 0])
    chance = failures.log_probability(X).exp().numpy()
    for one, other in zip(risky, free, strict=True):
        assert one == pytest.approx(other * chance)


def test_rows_are_told_in_words():
    tables = study({"C": [0.1, 0.6], "loss": [0.312, 0.6]})
    rows = pd.DataFrame({"probability_of_improvement": [0.6, 0.2, 0.01]})
    X = torch.rand(3, 1, dtype=torch.double)
    found = Suggestion(rows, {}, X, tables).prospects
    assert found == ["likely to beat 0.312", "may beat 0.312", "unlikely to beat 0.312: exploring"]
    assert Suggestion(rows * math.nan, {}, X, tables).prospects == []
    assert Suggestion(rows, {}, X, study({"C": [], "loss": []})).prospects == []
    texts = [short(x) for x in (58.23, 1234.5, 0.00123456, 100.4, -7e9)]
    assert texts == ["58.2", "1234", "0.00123", "100", "-7e+09"]


@pytest.mark.parametrize(("noise", "num_runs", "stops"), [(0.0, 3, False), (0.3, 40, True)])
def test_a_study_may_stop_where_nothing_promises_more_than_the_noise(noise, num_runs, stops):
    x = np.linspace(0, 1, num_runs)
    loss = (x - 0.4) ** 2 + noise * np.random.default_rng(0).normal(size=num_runs)
    outlook = suggest_rows(study({"C": x, "loss": loss})).outlook
    assert outlook.endswith("you may stop.") == stops
    assert outlook.startswith("The largest expected improvement on 0.01 is 0.") != stops


@pytest.mark.parametrize(("threshold", "stops"), [(0.2, True), (0.4, False)])
def test_the_threshold_is_the_best_mean_and_the_noise_on_it(monkeypatch, threshold, stops):
    """The best run's outcome, -0.3, is below the mean at this run, 0 here, and the noise of 0.3."""
    tables = study({"C": [0.5], "loss": [0.3]})
    model = SingleTaskGP(torch.full((1, 1), 0.5).double(), torch.zeros(1, 1).double())
    model.likelihood.noise = 0.09
    rows = pd.DataFrame({"probability_of_improvement": [0.1]})
    found = Suggestion(rows, {"loss": model.eval()}, torch.rand(1, 1).double(), tables)
    gains = lambda self, X, best: (np.ones(1), np.array([float(best < threshold)]))  # noqa: E731
    monkeypatch.setattr(Suggestion, "improvements", gains)
    assert ("you may stop" in found.outlook) == stops


def test_the_last_rows_are_announced():
    stock = pd.DataFrame({"C": [0.1, 0.2, 0.3]})
    for n, said in ((1, ""), (2, "These are the last rows: all other rows have been tried")):
        tables = study({"C": [0.1], "loss": [1.0]}, candidates=stock)
        assert suggest_rows(tables, n).outlook.startswith(said or "There") == bool(said)
