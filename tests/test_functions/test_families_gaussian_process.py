from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.test_functions import GaussianProcessFamily


def kernels():
    ard = RBFKernel(ard_num_dims=2)
    ard.lengthscale = torch.tensor([0.3, 1.0])
    scaled = ScaleKernel(MaternKernel(nu=2.5))
    scaled.outputscale, scaled.base_kernel.lengthscale = 4.0, 0.5
    rough = MaternKernel(nu=1.5, ard_num_dims=2)
    rough.lengthscale = torch.tensor([0.4, 0.8])
    return {"rbf": ard, "scaled matern52": scaled, "matern32": rough}


@pytest.mark.parametrize("name", kernels())
def test_independent_draws_have_the_kernels_covariance(name):
    kernel = kernels()[name]
    X = torch.tensor([[0.5, 0.5], [0.6, 0.5], [0.5, 0.8], [0.1, 0.9]], dtype=torch.double)
    tasks = GaussianProcessFamily.sample(1000, seed=0, covar_module=kernel, correlation=0.0)
    values = torch.stack([task(X) for task in tasks])
    expected = kernel.double()(X).to_dense().detach()
    scale = expected[0, 0]
    assert (values.mean(dim=0).abs() < 0.1 * scale.sqrt()).all()
    torch.testing.assert_close(values.T.cov() / scale, expected / scale, rtol=0, atol=0.12)


@pytest.mark.parametrize("correlation", [0.0, 0.7, 1.0])
def test_tasks_are_as_correlated_as_asked(correlation):
    x = torch.full((1, 1), 0.5, dtype=torch.double)
    pairs = [
        [
            task(x).item()
            for task in GaussianProcessFamily.sample(
                2, seed=seed, dim=1, correlation=correlation, num_features=64
            )
        ]
        for seed in range(150)
    ]
    found = torch.tensor(pairs).T.corrcoef()[0, 1].item()
    assert found == pytest.approx(correlation, abs=0.15)


def test_the_default_kernel_is_rbf_and_the_dimension_is_free():
    (task,) = GaussianProcessFamily.sample(1, seed=0, dim=5, noise_std=0.1, negate=True)
    assert task.dim == 5
    assert task.bounds.tolist() == [[0.0] * 5, [1.0] * 5]
    assert task.noise_std == 0.1
    assert task.negate
    assert task(torch.rand(3, 5)).dtype == torch.float


def test_one_dimension_agrees_with_a_dense_grid():
    grid = torch.linspace(0, 1, 5001, dtype=torch.double).unsqueeze(-1)
    for task in GaussianProcessFamily.sample(2, seed=2, dim=1, correlation=0.0):
        assert task.optimal_value <= task(grid).min() + 1e-9
        assert task.optimal_value == pytest.approx(float(task(grid).min()), abs=1e-4)


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    GaussianProcessFamily.sample(2, seed=0, covar_module=MaternKernel(nu=0.5))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kernel", [LinearKernel(), RBFKernel(active_dims=[0])])
def test_other_kernels_are_refused(kernel):
    with pytest.raises(ValueError, match="take an RBF or Matérn kernel over all inputs"):
        GaussianProcessFamily.sample(1, seed=0, covar_module=kernel)


def test_impossible_correlations_are_refused():
    with pytest.raises(ValueError, match=r"correlation between tasks is 1\.5: give 0 to 1"):
        GaussianProcessFamily.sample(1, seed=0, correlation=1.5)
