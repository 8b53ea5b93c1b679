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


def test_acquisitions_with_and_without_data():
    X, Y = history()["source 0"]
    model = SingleTaskGP(X, Y)
    for acquire in (log_ei_or_ucb, probability_of_improvement):
        assert isinstance(acquire(model, Y[:0], X), UpperConfidenceBound)
    acquisition = log_ei_or_ucb(model, Y, X)
    assert isinstance(acquisition, LogExpectedImprovement)
    assert acquisition.best_f == Y.max()
    assert isinstance(log_ei_or_mean(model, Y, X), LogExpectedImprovement)
    posterior, x = model.posterior(X), X.unsqueeze(1)
    torch.testing.assert_close(log_ei_or_mean(model, Y[:0], X)(x), posterior.mean[:, 0])
    bound = (posterior.mean + 3 * posterior.variance.sqrt()).flatten()
    torch.testing.assert_close(upper_bound(model, Y, X)(x), bound)
