"""Weighted draws, point by point, against dense GPs and against the package's ensemble."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from gpytorch.priors import GammaPrior, NormalPrior

from benchmarks.hyperpriors.loop import by_model, first_points, normalized_regrets
from benchmarks.hyperpriors.table_one import averaged
from benchmarks.hyperpriors.weighted_draws import WeightedDraws
from botorch_transfer import Hyperprior
from botorch_transfer.gp.stationary import stationary_function
from botorch_transfer.hyperprior.fit import log_likelihoods
from tests.hyperprior.domains import draw_domain

HYPERPRIOR = Hyperprior.specified(
    NormalPrior(1.0, 1.0),
    GammaPrior(10.0, 30.0),
    GammaPrior(2.0, 1.0),
    GammaPrior(2.0, 200.0),
    kernel="matern32",
)
TASK = draw_domain([0.3, 0.4], sizes=(40,), nu=1.5).datasets[0]


@torch.no_grad()
def dense(draws, index: int, chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of one draw's GP, by solving with the whole covariance matrix."""
    kernel = stationary_function("matern32").make_kernel(ard_num_dims=2).double()
    kernel.lengthscale = draws.lengthscale[index]
    covariance = draws.outputscale[index] * kernel(TASK.X).to_dense()
    known = covariance[chosen][:, chosen] + draws.noise[index] * torch.eye(len(chosen)).double()
    cross = torch.linalg.solve(known, covariance[chosen])
    residual = TASK.Y[chosen].squeeze(-1) - draws.constant[index]
    mean = draws.constant[index] + residual @ cross
    return mean, draws.outputscale[index] - (covariance[chosen] * cross).sum(dim=0)


def test_equal_to_dense_gps():
    draws, chosen = HYPERPRIOR.sample(7, 2, seed=1), [3, 8, 1, 30, 8]
    weighted = WeightedDraws(TASK.X, TASK.Y, draws, "matern32")
    for number in range(2, 6):
        score = weighted(chosen[:number])
    likelihood = log_likelihoods(draws, TASK.X[chosen], TASK.Y[chosen, 0], None, "matern32")
    torch.testing.assert_close(weighted.log_likelihood, likelihood, rtol=1e-6, atol=1e-6)
    found, best = 0.0, TASK.Y[chosen].max() + 0.1
    for index, weight in enumerate(likelihood.softmax(dim=0)):
        mean, variance = dense(draws, index, chosen)
        torch.testing.assert_close(weighted.mean[index], mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(weighted.variance[index], variance, rtol=1e-6, atol=1e-6)
        found = found + weight * torch.special.ndtr((mean - best) / variance.sqrt())
    torch.testing.assert_close(score.exp(), found, rtol=1e-6, atol=1e-12)
    assert score.isfinite().all()


@pytest.mark.filterwarnings("ignore:The ensemble is worth only")
def test_close_to_the_packages_ensemble():
    """Which differs by the rounding of weights to whole members."""
    draws, chosen = HYPERPRIOR.sample(100, 2, seed=4), first_points(40, 6, seed=0)
    ours = WeightedDraws(TASK.X, TASK.Y, draws, "matern32")(chosen)

    def improvement(model, Y):
        return LogProbabilityOfImprovement(model, best_f=Y.max() + 0.1)

    build = averaged(HYPERPRIOR, (100, 1000), seed=4)
    theirs = by_model(TASK.X, TASK.Y, build, improvement)(chosen)
    torch.testing.assert_close(ours.exp(), theirs.exp(), rtol=0.02, atol=1e-3)
    assert ours.argmax() == theirs.argmax()


def test_draws_that_explain_nothing_lose_their_weight():
    draws = HYPERPRIOR.sample(50, 2)
    weighted = WeightedDraws(TASK.X, TASK.Y, draws, "matern32")
    assert weighted.log_weights.exp().sum() == pytest.approx(1.0)
    before = weighted.log_weights.exp().square().sum()
    weighted(list(range(30)))
    assert weighted.log_weights.exp().square().sum() > 2 * before


def test_it_finds_the_best_point():
    draws = HYPERPRIOR.sample(50, 2)
    found = normalized_regrets(
        TASK.Y, WeightedDraws(TASK.X, TASK.Y, draws, "matern32"), 3, 20, seed=0, repeat=True
    )
    assert found[-1] == 0.0
