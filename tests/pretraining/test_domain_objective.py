"""The likelihood of a domain, against a naive joint one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining.hyperprior.domain_fit import (
    domain_negative_log_likelihood,
    lengthscale_penalty,
)
from botorch_transfer.pretraining.tasks import PaddedTasks
from tests.pretraining.tasks import draw_data

KERNELS = {"rbf": RBFKernel, "matern52": MaternKernel}


def twin(theta, datasets, kernel):
    """The same sum, task by task by GPyTorch, differentiable."""
    dim = datasets[0].X.shape[-1]
    module = ScaleKernel(KERNELS[kernel](ard_num_dims=dim)).double()
    total = theta.new_zeros(())
    for data in datasets:
        X = data.X / theta[:dim].exp()
        module.base_kernel.lengthscale = torch.ones(1, dim)
        module.outputscale = 1.0
        covariance = module(X).to_dense() * theta[dim].exp()
        noise = theta[dim + 1].exp() if data.Yvar is None else data.Yvar.squeeze(-1)
        covariance = covariance + noise * torch.eye(len(X)).double()
        mean = theta[-1].expand(len(X))
        total = total - MultivariateNormal(mean, covariance).log_prob(data.Y.squeeze(-1))
    return total


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("known_noise", [(), (1,), (0, 1, 2)])
def test_value_and_gradient_equal_the_naive_sum(kernel, known_noise):
    datasets = as_datasets(draw_data((9, 4, 12), dim=3, known_noise=known_noise))
    tasks = PaddedTasks.from_datasets(datasets)
    theta = torch.tensor(
        [[-1.0, 0.3, -0.4, 0.2, -3.0, 0.7], [0.1, -0.5, 0.6, -1.0, -5.0, -2.0]], dtype=torch.double
    )
    value, gradient = domain_negative_log_likelihood(theta, tasks, kernel)
    for row in range(2):
        parameters = theta[row].clone().requires_grad_(True)
        expected = twin(parameters, datasets, kernel)
        (slope,) = torch.autograd.grad(expected, parameters, allow_unused=True)
        torch.testing.assert_close(value[row], expected.detach(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gradient[row], slope, rtol=1e-6, atol=1e-6)


def test_undefined_likelihoods_are_nan():
    tasks = PaddedTasks.from_datasets(as_datasets(draw_data((5,))))
    tasks = replace(tasks, X=tasks.X * torch.nan)
    value, _ = domain_negative_log_likelihood(torch.zeros(1, 5, dtype=torch.double), tasks, "rbf")
    assert value.isnan().all()


def test_penalty_is_that_of_a_normal_distribution_of_logarithms():
    theta = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    value, gradient = lengthscale_penalty(theta.detach(), start=0.5, spread=1.5)
    normal = torch.distributions.Normal(torch.tensor(0.5).double().log(), 1.5)
    peak = normal.log_prob(normal.mean)
    expected = (peak - normal.log_prob(theta[:, :2])).sum(dim=-1)
    torch.testing.assert_close(value, expected.detach())
    (slope,) = torch.autograd.grad(expected.sum(), theta)
    torch.testing.assert_close(gradient, slope)
    assert (lengthscale_penalty(theta.detach(), 0.5, torch.inf)[0] == 0).all()
