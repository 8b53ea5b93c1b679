from __future__ import annotations

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel

from botorch_transfer.hyperprior import fit as validation
from botorch_transfer.hyperprior.fit import HyperparameterDraws, log_likelihoods


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
