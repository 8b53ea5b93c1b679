from unittest.mock import patch

import pytest
import torch

from benchmarks.studies.methods import optimization
from benchmarks.studies.methods.acquisitions import log_ei_or_ucb
from benchmarks.studies.methods.models import plain_gp, transfer
from benchmarks.studies.methods.optimization import THRIFTY, BayesianOptimization, Fitting
from botorch_transfer import PopulationGP, TransferGP
from tests.benchmarks.studies.toy import live, table


def sizes_of_fits(fitting, num_points, problem=None):
    """The numbers of points that a method fits its model to as they grow."""
    method = BayesianOptimization(plain_gp, log_ei_or_ucb, True, fitting)
    X = table().X
    Y = -(X - 0.4).square().sum(dim=-1, keepdim=True)
    problem, sizes = problem or live(), []

    def record(mll, **options):
        sizes.append(len(mll.model.train_targets))

    with patch.object(optimization, "fit_gpytorch_mll", record):
        for n in range(1, num_points + 1):
            method.model(problem, X[:n], Y[:n])
    return sizes


def test_thrifty_fits_grow_rare():
    assert sizes_of_fits(THRIFTY, 20) == [1, 2, 3, 4, 5, 7, 9, 12, 15, 19]


def test_values_of_the_last_fit_stay_until_the_next():
    X = table().X[::3]
    Y = -(X - 0.4).square().sum(dim=-1, keepdim=True)
    method = BayesianOptimization(plain_gp, log_ei_or_ucb, True, Fitting(growth=2.0))
    problem = live()
    fitted = method.model(problem, X[:6], Y[:6])
    later = method.model(problem, X[:7], Y[:7])
    assert len(later.train_targets) == 7
    assert torch.equal(
        later.covar_module.lengthscale.detach(), fitted.covar_module.lengthscale.detach()
    )
    # Another run has nothing to do with it.
    for other, points in ((live(), X[:7]), (problem, X[1:8])):
        again = method.model(other, points, Y[: len(points)])
        assert not torch.equal(again.covar_module.lengthscale, later.covar_module.lengthscale)


@pytest.mark.parametrize(
    ("model", "population"),
    [(PopulationGP, lambda model: model), (TransferGP, lambda model: model.members["population"])],
)
def test_scales_follow_new_points_without_a_fit(model, population):
    X = table().X[::3]
    Y = torch.sin(9.0 * X).sum(dim=-1, keepdim=True)
    fitting = Fitting(growth=2.0, num_restarts=0)
    method = BayesianOptimization(transfer(model), log_ei_or_ucb, False, fitting)
    problem = live()
    method.model(problem, X[:5], Y[:5])
    later = method.model(problem, X[:8], Y[:8])
    # Nothing else is fitted, so that a rebuilt model is the same.
    built = method.build(X[:8], Y[:8], problem)
    for name, value in population(built).named_parameters():
        assert torch.equal(dict(population(later).named_parameters())[name], value)
    if model is TransferGP:
        assert torch.equal(later.shares, built.shares)
