from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import MaternKernel

from botorch_transfer.test_functions import LARGE_SUPER_DATASET, SMALL_SUPER_DATASET

FAMILIES = {"S": SMALL_SUPER_DATASET, "L": LARGE_SUPER_DATASET}


@pytest.mark.parametrize("name", FAMILIES)
def test_any_size(name):
    drawn = FAMILIES[name].draw(num_domains=4, num_tasks=3, num_points=7, seed=1)
    assert len(drawn.domains) == len(drawn.truth) == 4
    for domain, truth in zip(drawn.domains, drawn.truth, strict=True):
        assert truth.lengthscale.shape == (1, domain.dim)
        assert [task.X.shape for task in domain.datasets] == [(7, domain.dim)] * 3
        assert all((task.X >= 0).all() and (task.X <= 1).all() for task in domain.datasets)
        assert domain.discrete_dims == ()


def test_sizes_are_the_papers():
    assert (SMALL_SUPER_DATASET.num_domains, LARGE_SUPER_DATASET.num_domains) == (20, 20)
    assert (SMALL_SUPER_DATASET.num_tasks, SMALL_SUPER_DATASET.num_points) == (10, 300)
    assert (LARGE_SUPER_DATASET.num_tasks, LARGE_SUPER_DATASET.num_points) == (20, 3000)
    default = SMALL_SUPER_DATASET.draw(num_tasks=1, num_points=2)
    assert len(default.domains) == 20


@pytest.mark.parametrize("name", FAMILIES)
def test_hyperparameters_follow_the_hyperprior(name):
    family = FAMILIES[name]
    drawn = family.draw(num_domains=600, num_tasks=1, num_points=1, seed=2)
    dims = torch.tensor([domain.dim for domain in drawn.domains])
    assert (int(dims.min()), int(dims.max())) == family.dims
    close = {"rtol": 0.15, "atol": 0}
    for value, gamma in (("outputscale", family.outputscale), ("noise", family.noise)):
        values = torch.cat([getattr(truth, value) for truth in drawn.truth])
        mean = gamma[0] / gamma[1]
        torch.testing.assert_close(values.mean(), torch.tensor(mean).double(), **close)
    constants = torch.cat([truth.constant for truth in drawn.truth])
    torch.testing.assert_close(constants.std(), torch.tensor(family.constant[1]).double(), **close)
    for dim in family.dims:
        lengthscales = torch.cat(
            [t.lengthscale[0] for t in drawn.truth if t.lengthscale.shape[-1] == dim]
        )
        shape, rate = family.lengthscale_gamma(dim)
        expected = torch.tensor(shape / rate).double()
        torch.testing.assert_close(lengthscales.mean(), expected, rtol=0.25, atol=0)


def test_large_lengthscales_grow_with_the_dimension():
    means = [shape / rate for shape, rate in map(LARGE_SUPER_DATASET.lengthscale_gamma, (2, 14))]
    assert means == pytest.approx([1.0 / 5.0, 1.9231 / 0.7531], rel=1e-3)


def test_tasks_are_draws_of_their_gp():
    drawn = SMALL_SUPER_DATASET.draw(num_domains=1, num_tasks=300, num_points=12, seed=3)
    truth = drawn.truth[0]
    kernel = MaternKernel(nu=1.5, ard_num_dims=truth.lengthscale.shape[-1]).double()
    kernel.lengthscale = truth.lengthscale
    squares = []
    for task in drawn.domains[0].datasets:
        covariance = truth.outputscale * kernel(task.X).to_dense().detach()
        covariance = covariance + truth.noise * torch.eye(12).double()
        root = torch.linalg.cholesky(covariance)
        squares.append(torch.linalg.solve(root, task.Y - truth.constant).square())
    torch.testing.assert_close(
        torch.cat(squares).mean(), torch.tensor(1.0).double(), atol=0.1, rtol=0
    )


def test_first_domains_and_tasks_stay():
    small = SMALL_SUPER_DATASET.draw(2, 1, 5, seed=4)
    large = SMALL_SUPER_DATASET.draw(3, 2, 5, seed=4)
    for left, right in zip(small.domains, large.domains[:2], strict=True):
        assert torch.equal(left.datasets[0].Y, right.datasets[0].Y)
    other = SMALL_SUPER_DATASET.draw(2, 1, 5, seed=5)
    assert not torch.equal(other.truth[0].constant, small.truth[0].constant)


def test_the_truth_as_a_hyperprior():
    prior = LARGE_SUPER_DATASET.hyperprior(14)
    assert prior.kernel == "matern52"
    shape, rate = LARGE_SUPER_DATASET.lengthscale_gamma(14)
    lengthscale = prior.lengthscale_prior(14)
    assert float(lengthscale.concentration) == pytest.approx(shape)
    assert float(lengthscale.rate) == pytest.approx(rate)


def test_outcomes_are_noisy():
    noisy = replace(SMALL_SUPER_DATASET, outputscale=(1.0, 1e6), noise=(1e4, 1e4))
    drawn = noisy.draw(num_domains=1, num_tasks=1, num_points=400)
    deviation = drawn.domains[0].datasets[0].Y - drawn.truth[0].constant
    assert float(deviation.square().mean()) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("size", ["num_tasks", "num_points"])
def test_nothing_is_no_data(size):
    with pytest.raises(InputDataError, match=r"no source tasks|is empty"):
        SMALL_SUPER_DATASET.draw(num_domains=1, **{size: 0})
