import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.models import SingleTaskGP

from benchmarks.studies.methods.acquisitions import (
    log_ei_or_mean,
    log_ei_or_ucb,
    probability_of_improvement,
    upper_bound,
)
from tests.benchmarks.studies.toy import history


@pytest.fixture
def data():
    return history()["source 0"]


def test_acquisition_is_ucb_without_data_and_log_ei_with(data):
    X, Y = data
    model = SingleTaskGP(X, Y)
    for acquire in (log_ei_or_ucb, probability_of_improvement):
        assert isinstance(acquire(model, Y[:0], X), UpperConfidenceBound)
    acquisition = log_ei_or_ucb(model, Y, X)
    assert isinstance(acquisition, LogExpectedImprovement)
    assert acquisition.best_f == Y.max()
    assert isinstance(log_ei_or_mean(model, Y, X), LogExpectedImprovement)
    mean = log_ei_or_mean(model, Y[:0], X)(X.unsqueeze(1))
    torch.testing.assert_close(mean, model.posterior(X).mean[:, 0])


def test_upper_bound_is_three_deviations_above_the_mean(data):
    X, Y = data
    model = SingleTaskGP(X, Y)
    posterior = model.posterior(X.unsqueeze(1))
    bound = (posterior.mean + 3 * posterior.variance.sqrt()).flatten()
    torch.testing.assert_close(upper_bound(model, Y, X)(X.unsqueeze(1)), bound)
