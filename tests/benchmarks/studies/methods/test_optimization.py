import torch

from benchmarks.studies.methods.acquisitions import log_ei_or_ucb
from benchmarks.studies.methods.models import plain_gp, transfer
from benchmarks.studies.methods.optimization import BayesianOptimization, Fitting
from botorch_transfer import TransferGP
from tests.benchmarks.studies.toy import live, table


def test_values_of_the_last_fit_stay_until_the_next():
    X = table().X[::3]
    Y = -(X - 0.4).square().sum(dim=-1, keepdim=True)
    method = BayesianOptimization(plain_gp, log_ei_or_ucb, True, Fitting(growth=2.0))
    problem = live()
    fitted = method.model(problem, X[:6], Y[:6])
    later = method.model(problem, X[:7], Y[:7])
    assert len(later.train_targets) == 7
    assert torch.equal(later.covar_module.lengthscale, fitted.covar_module.lengthscale)
    # Another run has nothing to do with it.
    for other, points in ((live(), X[:7]), (problem, X[1:8])):
        again = method.model(other, points, Y[: len(points)])
        assert not torch.equal(again.covar_module.lengthscale, later.covar_module.lengthscale)


def test_scales_follow_new_points_without_a_fit():
    X = table().X[::3]
    Y = torch.sin(9.0 * X).sum(dim=-1, keepdim=True)
    fitting = Fitting(growth=2.0, num_restarts=0)
    method = BayesianOptimization(transfer(TransferGP), log_ei_or_ucb, False, fitting)
    problem = live()
    method.model(problem, X[:5], Y[:5])
    later = method.model(problem, X[:8], Y[:8])
    # Nothing else of the population is fitted, so that a rebuilt model is the same.
    built = method.build(X[:8], Y[:8], problem)
    found = dict(later.members["population"].named_parameters())
    for name, value in built.members["population"].named_parameters():
        assert torch.equal(found[name], value)
    assert torch.equal(later.shares, built.shares)
