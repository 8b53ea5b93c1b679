from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from botorch_transfer.gp.combine import WeightedSumMean
from botorch_transfer.gp.conditioned import different_rows
from botorch_transfer.gp.stationary import stationary_function
from botorch_transfer.population import prior as prior_of_population
from botorch_transfer.population.model import PopulationKernel, PopulationMean, TargetScale
from botorch_transfer.population.prior import (
    MAX_REFERENCE,
    ConditionedPopulation,
    PopulationHyperparameters,
    centred,
)
from botorch_transfer.prior import Observations
from tests.gp.padded import KERNELS, check_draws, points
from tests.population.twin import Sources

SIZES = ((6,), (5, 1, 7))


def hyperparameters(dim: int = 2, seed: int = 3) -> PopulationHyperparameters:
    numbers = (torch.tensor(value).double() for value in (0.8, 0.6, 0.05))
    lengthscales = 0.3 + points(dim, seed=seed), 0.3 + points(dim, seed=seed + 1)
    return PopulationHyperparameters(*lengthscales, *numbers, points(1))


def rows_of(sizes: tuple[int, ...]) -> dict[str, Tensor]:
    task = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    X = points(len(task), 2)
    Y, noise = torch.sin(4 * X.sum(dim=-1)) + task, 0.01 + 0.1 * points(len(task))
    return {"X": X, "Y": Y, "noise": noise, "task": task}


def population(
    sizes: tuple[int, ...],
    kernel: str = "matern52",
    max_inducing: int | None = None,
    **changed: Tensor,
) -> ConditionedPopulation:
    data = Observations(**{**rows_of(sizes), **changed})
    names = [f"task {index}" for index in range(len(sizes))]
    return ConditionedPopulation.from_data(data, hyperparameters(), kernel, names, max_inducing)


def twin_of(sizes: tuple[int, ...], kernel: str = "matern52") -> Sources:
    rows = rows_of(sizes)
    data = [rows[name] for name in ("X", "Y", "task", "noise")]
    return Sources(*data, hyperparameters(), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sizes", SIZES)
def test_posterior_of_what_all_tasks_share(sizes, kernel):
    gps, twin = population(sizes, kernel), twin_of(sizes, kernel)
    A, B = points(4, 2, seed=7), points(3, 2, seed=8)
    mean, covariance = twin.posterior(A, A)
    torch.testing.assert_close(gps.mean(A)[0], mean)
    torch.testing.assert_close(gps.covariance(A)[0], covariance)
    torch.testing.assert_close(gps.variance(A)[0], covariance.diagonal())
    torch.testing.assert_close(gps.covariance(A, B)[0], twin.posterior(A, B)[1])


def test_draws_from_the_posterior():
    check_draws(population(SIZES[1]), points(3, 2, seed=7))


# ------------------------------------------------------------------------------ inducing points

REPEATED = (6, 5, 6)


def repeated(**changed: Any) -> ConditionedPopulation:
    """Rows of three tasks at only six different inputs: as inducing points they lose nothing."""
    return population(REPEATED, "rbf", X=points(6, 2).repeat(3, 1)[:17], **changed)


@pytest.mark.parametrize("most_rows", [100, 1])
def test_inducing_points_lose_nothing_where_inputs_repeat(most_rows, monkeypatch):
    monkeypatch.setattr(prior_of_population, "MAX_ROWS_OF_TASK", most_rows)
    exact, A = repeated(), points(4, 2, seed=7)
    gps = repeated(max_inducing=16)
    assert exact.points.shape == (17, 2)
    assert gps.points.shape == (6, 2)
    # What the inducing points of a task's own function leave of its variance counts as noise.
    close = {"atol": 1e-6 if most_rows > 1 else 1e-3, "rtol": 0}
    torch.testing.assert_close(gps.mean(A), exact.mean(A), **close)
    torch.testing.assert_close(gps.covariance(A), exact.covariance(A), **close)
    of_tasks = gps.parts @ gps.flat_cross(A)[0].mT
    expected = exact.parts @ exact.flat_cross(A)[0].mT
    torch.testing.assert_close(of_tasks, expected, **close)


@pytest.mark.parametrize("most_rows", [100, 1])
def test_inducing_points_are_those_of_the_sparse_posterior(most_rows, monkeypatch):
    monkeypatch.setattr(prior_of_population, "MAX_ROWS_OF_TASK", most_rows)
    gps, A = population((9, 8, 7), max_inducing=10), points(4, 2, seed=7).requires_grad_()
    twin, Z, B = twin_of((9, 8, 7)), gps.points, points(3, 2, seed=8)
    assert len(Z) == 10
    Kz, Kx = twin.common(Z, Z), twin.common(Z, twin.X)
    R = twin.covariance() - twin.common(twin.X, twin.X)
    S = Kz + Kx @ torch.linalg.solve(R, Kx.mT)
    mean = twin.common(A, Z) @ torch.linalg.solve(S, Kx @ torch.linalg.solve(R, twin.y))
    left = torch.linalg.inv(Kz) - torch.linalg.inv(S)
    covariance = twin.common(A, B) - twin.common(A, Z) @ left @ twin.common(Z, B)
    close = {"atol": 1e-6 if most_rows > 1 else 1e-4, "rtol": 0}
    torch.testing.assert_close(gps.mean(A)[0], mean, **close)
    torch.testing.assert_close(gps.covariance(A, B)[0], covariance, **close)
    gradients = [
        torch.autograd.grad(m.sum() + c.sum(), A, retain_graph=True)[0]
        for m, c in ((gps.mean(A), gps.covariance(A, B)), (mean, covariance))
    ]
    torch.testing.assert_close(*gradients, atol=10 * close["atol"], rtol=0)


def test_order_of_rows_does_not_matter_to_inducing_points():
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    rows = {name: values[order] for name, values in rows_of((9, 8, 7)).items()}
    first, second = (population((9, 8, 7), max_inducing=10, **each) for each in ({}, rows))
    A = points(4, 2, seed=7)
    torch.testing.assert_close(first.mean(A), second.mean(A))
    torch.testing.assert_close(first.covariance(A), second.covariance(A))


def test_draws_from_the_posterior_on_inducing_points():
    check_draws(population((9, 8, 7), max_inducing=10), points(3, 2, seed=7))


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_singular_covariance_is_refused_by_name():
    noise = torch.full((13,), -1.0).double()
    with pytest.raises(InputDataError, match="task 0"):
        population(SIZES[1], noise=noise)


def test_other_dimensions_are_refused():
    with pytest.raises(BotorchTensorDimensionError, match="3 columns, but the source tasks have 2"):
        population(SIZES[0]).mean(points(4, 3))


def test_states_of_other_kernels_are_refused():
    state = population(SIZES[1], "matern52").state_dict()
    with pytest.raises(ValueError, match=r"kernel 'matern52', but this .* has 'rbf'"):
        population(SIZES[1], "rbf").load_state_dict(state)


# ------------------------------------------------------------------------------ centred functions


@pytest.mark.parametrize("n", [1, 30, 200])
def test_reference_points_are_different_and_do_not_depend_on_the_order(n):
    X = points(n, 2).repeat(2, 1)
    shuffled = X[torch.randperm(2 * n, generator=torch.Generator().manual_seed(0))]
    chosen = X[different_rows(X, MAX_REFERENCE)]
    assert len(chosen.unique(dim=0)) == len(chosen) == min(n, MAX_REFERENCE)
    assert torch.equal(shuffled[different_rows(shuffled, MAX_REFERENCE)], chosen)


def test_centred_functions_have_no_mean():
    covariance = twin_of(SIZES[1]).common(points(12, 2), points(12, 2))
    rows = torch.tensor([0, 3, 11])
    left = centred(covariance, rows)
    torch.testing.assert_close(left[rows].sum(dim=0), torch.zeros(12).double())
    minus_mean = torch.eye(12).double()
    minus_mean[:, rows] -= 1 / 3
    torch.testing.assert_close(left, minus_mean @ covariance @ minus_mean.mT)


# ------------------------------------------------------------------------------- scale and level


def target(scale: TargetScale) -> tuple[PopulationMean, PopulationKernel]:
    gps, found = population(SIZES[1], "rbf"), hyperparameters()
    base = stationary_function("rbf").make_kernel(ard_num_dims=2, batch_shape=scale.mean.shape)
    residual = ScaleKernel(base, batch_shape=scale.mean.shape).double()
    base.lengthscale = found.own_lengthscale.expand_as(base.lengthscale)
    residual.outputscale = found.own_outputscale.expand_as(residual.outputscale)
    common = WeightedSumMean(gps)
    return PopulationMean(common, scale), PopulationKernel(residual, common, scale)


def moments_of_draws(A: torch.Tensor, scale: TargetScale) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of ``a + b (c + h)`` from a two-point distribution of ``b``."""
    twin = twin_of(SIZES[1], "rbf")
    mean, covariance = twin.posterior(A, A)
    deviation = scale.variance.sqrt()
    parts = [(b * mean, b**2 * (covariance + twin.own(A, A))) for b in
             (scale.mean - deviation, scale.mean + deviation)]  # fmt: skip
    average = sum(m for m, _ in parts) / 2
    within = sum(c for _, c in parts) / 2
    between = sum(torch.outer(m - average, m - average) for m, _ in parts) / 2
    return average, within + between + scale.level_variance


def some_scale(*batch_shape: int) -> TargetScale:
    scale = TargetScale(torch.Size(batch_shape)).double()
    mean = 0.5 + points(*batch_shape, 1, seed=4).squeeze(-1)
    scale.set(mean, 0.3 * mean, mean**2 + 0.3 * mean, torch.tensor(2.0))
    return scale


def test_moments_of_a_further_task():
    scale = some_scale()
    mean, kernel = target(scale)
    A = points(5, 2, seed=7)
    expected_mean, expected = moments_of_draws(A, scale)
    torch.testing.assert_close(mean(A), expected_mean)
    torch.testing.assert_close(kernel(A).to_dense(), expected)
    torch.testing.assert_close(kernel(A, diag=True), expected.diagonal())
    torch.testing.assert_close(kernel(A[:3], A[2:]).to_dense(), expected[:3, 2:])


def test_moments_travel_with_the_hyperparameters():
    scale, other = some_scale(2), TargetScale(torch.Size([2])).double()
    other.load_state_dict(scale.state_dict())
    assert torch.equal(other.moments, scale.moments)
    assert not other.moments.requires_grad
    copied = deepcopy(scale)
    copied.set(*torch.ones(4, 2))
    assert not torch.equal(copied.moments, scale.moments)


def test_members_of_a_batch_of_kernels():
    _, kernel = target(some_scale())
    assert kernel[..., 0] is kernel
    A, (_, batch) = points(5, 2, seed=7), target(some_scale(3))
    torch.testing.assert_close(batch[1](A).to_dense(), batch(A).to_dense()[1])
