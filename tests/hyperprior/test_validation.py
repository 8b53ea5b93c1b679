import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.priors import UniformPrior
from scipy import integrate, stats

from botorch_transfer.hyperprior import fit as validation
from botorch_transfer.hyperprior.fit import HyperparameterDraws, log_likelihoods
from botorch_transfer.hyperprior.prior import hierarchical_negative_log_likelihood
from tests.members import hyperprior


def draws(num: int, dim: int) -> HyperparameterDraws:
    def positive(*shape: int) -> torch.Tensor:
        return 0.1 + torch.rand(*shape, dtype=torch.double)

    return HyperparameterDraws(
        constant=torch.randn(num, dtype=torch.double),
        lengthscale=positive(num, dim),
        outputscale=positive(num),
        noise=positive(num),
    )


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("known_noise", [False, True])
def test_likelihoods_equal_gpytorchs(n, known_noise, monkeypatch):
    monkeypatch.setattr(validation, "BLOCK_ELEMENTS", 100)  # two or three rows at a time
    drawn = draws(5, 2)
    X, Y = torch.rand(n, 2, dtype=torch.double), torch.randn(n, dtype=torch.double)
    Yvar = 0.1 + torch.rand(n, dtype=torch.double) if known_noise else None
    found = log_likelihoods(drawn, X, Y, Yvar, "matern32")
    for row in range(5):
        kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2)).double()
        kernel.base_kernel.lengthscale = drawn.lengthscale[row]
        kernel.outputscale = drawn.outputscale[row]
        noise = drawn.noise[row].expand(n) if Yvar is None else Yvar
        covariance = kernel(X).to_dense() + noise.diag()
        mean = drawn.constant[row].expand(n)
        expected = (
            MultivariateNormal(mean, covariance).log_prob(Y) if n else torch.zeros(()).double()
        )
        torch.testing.assert_close(found[row], expected.detach(), rtol=1e-8, atol=1e-8)


def test_impossible_draws_weigh_nothing():
    drawn = draws(2, 1)
    drawn.outputscale[1] = torch.nan
    X = torch.rand(3, 1, dtype=torch.double)
    found = log_likelihoods(drawn, X, X.squeeze(-1), None, "rbf")
    assert found[0].isfinite()
    assert found[1] == -torch.inf


HYPERPRIOR = hyperprior(noise=UniformPrior(0.1, 0.1001))


def test_a_single_point_has_a_known_value():
    """There, mean, signal variance and noise are all that matters: an integral in one dimension."""
    X, Y = torch.rand(1, 2, dtype=torch.double), torch.tensor([[2.0]], dtype=torch.double)
    found = hierarchical_negative_log_likelihood(HYPERPRIOR, [(X, Y)], num_samples=200_000)

    def density(s):
        return stats.norm.pdf(2.0, 0.5, math.sqrt(1 + s + 0.1)) * stats.gamma.pdf(s, 2, scale=0.5)

    expected = -math.log(integrate.quad(density, 0, 50)[0])
    assert float(found) == pytest.approx(expected, abs=0.01)


def test_value_is_that_of_the_draws():
    X = torch.rand(6, 2, dtype=torch.double)
    tasks = {"a": (X, X[:, :1]), "b": (X[:3], X[:3, 1:], torch.full((3, 1), 0.2).double())}
    found = hierarchical_negative_log_likelihood(HYPERPRIOR, tasks, num_samples=50, seed=4)
    draws = HYPERPRIOR.sample(50, 2, seed=4)
    for value, (X, Y, *Yvar) in zip(found, tasks.values(), strict=True):
        noise = Yvar[0].squeeze(-1) if Yvar else None
        likelihoods = log_likelihoods(draws, X, Y.squeeze(-1), noise, "matern52").exp()
        torch.testing.assert_close(value, -likelihoods.mean().log())


def test_no_tasks_and_no_draws_are_refused():
    with pytest.raises(InputDataError, match="no source tasks"):
        hierarchical_negative_log_likelihood(HYPERPRIOR, [])
    X = torch.rand(3, 2, dtype=torch.double)
    with pytest.raises(ValueError, match="num_samples=0"):
        hierarchical_negative_log_likelihood(HYPERPRIOR, [(X, X[:, :1])], num_samples=0)
