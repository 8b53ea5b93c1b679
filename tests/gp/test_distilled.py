"""Posteriors on inducing points against the dense formula, and where nothing is lost."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.distilled import InducingPoints, different_rows
from botorch_transfer.gp.stationary import Stationary
from tests.gp.padded import KERNELS, Task, check_draws, condition, draw_tasks, points


def doubled(task: Task) -> Task:
    """Each input twice, with two outcomes: half of the rows as inducing points lose nothing."""
    twice = {name: getattr(task, name).repeat(2) for name in ("Y", "noise")}
    twice["Y"] = twice["Y"] + points(len(twice["Y"]), seed=5)
    return Task(**{**vars(task), **twice, "X": task.X.repeat(2, 1)})


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_lost_where_inputs_repeat(kernel: str) -> None:
    tasks = [doubled(task) for task in draw_tasks([7, 9], 3, kernel)]
    exact, gps, A = condition(tasks), condition(tasks, max_inducing=12), points(4, 3)
    assert gps.mask.sum(dim=-1).tolist() == [7, 9]
    torch.testing.assert_close(gps.mean(A), exact.mean(A), atol=1e-6, rtol=0)
    torch.testing.assert_close(gps.covariance(A), exact.covariance(A), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_equals_the_dense_sparse_posterior(shuffle: bool) -> None:
    tasks, A = draw_tasks([30, 4, 20], 2), points(5, 2).requires_grad_()
    B = points(3, 2, seed=9)
    gps = condition(tasks, num_rows=33, filling=7.0, shuffle=shuffle, max_inducing=8)
    assert gps.mask.sum(dim=-1).tolist() == [8, 4, 8]
    for index, task in enumerate(tasks):
        Z = gps.points[index, gps.mask[index]]
        Kz, Kx, Ka = task.prior(Z, Z), task.prior(Z, task.X), task.prior(A, Z)
        S = Kz + Kx @ (Kx / task.noise).mT
        mean = task.mean + Ka @ torch.linalg.solve(S, Kx @ ((task.Y - task.mean) / task.noise))
        left = torch.linalg.inv(Kz) - torch.linalg.inv(S)
        covariance = task.prior(A, B) - Ka @ left @ task.prior(Z, B)
        if len(Z) == len(task.X):
            mean, covariance = task.posterior_mean(A), task.posterior_covariance(A, B)
        ours = gps.mean(A)[index], gps.covariance(A, B)[index]
        torch.testing.assert_close(ours[0], mean, atol=1e-6, rtol=0)
        torch.testing.assert_close(ours[1], covariance, atol=1e-6, rtol=0)
        diagonal = gps.covariance(B)[index].diagonal()
        torch.testing.assert_close(gps.variance(B)[index], diagonal, atol=1e-6, rtol=0)
        first, second = (
            torch.autograd.grad(m.sum() + c.sum(), A, retain_graph=True)[0]
            for m, c in (ours, (mean, covariance))
        )
        torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_errors_fall_with_the_number_of_points() -> None:
    (task,), A = draw_tasks([60], 2), points(50, 2)
    exact, errors = condition([task]), []
    for most in (5, 15, 30, 60):
        gps = condition([task], max_inducing=most)
        errors.append(float((gps.mean(A) - exact.mean(A)).abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0.0 < errors[0]


def test_order_of_rows_does_not_matter() -> None:
    (task,), A = draw_tasks([25], 2), points(5, 2)
    order = torch.randperm(25, generator=torch.Generator().manual_seed(0))
    rows = {name: getattr(task, name)[order] for name in ("X", "Y", "noise")}
    first, second = (condition([t], max_inducing=9) for t in (task, Task(**{**vars(task), **rows})))
    torch.testing.assert_close(first.mean(A), second.mean(A))
    torch.testing.assert_close(first.covariance(A), second.covariance(A))


def test_no_more_points_than_the_variance_asks_for() -> None:
    smooth = Stationary("rbf", torch.full((1, 2), 5.0).double(), torch.tensor(2.0).double())
    inducing = InducingPoints.chosen(smooth, points(200, 2), most=100, noise=torch.ones(200))
    assert len(inducing.points) < 20
    left = 2.0 - inducing.whiten(points(50, 2, seed=4)).square().sum(dim=0)
    assert float(left.max()) < 1e-3


def test_draws_from_the_posterior() -> None:
    tasks = draw_tasks([12, 5], 2)
    check_draws(condition(tasks), points(3, 2))
    check_draws(condition(tasks, max_inducing=6), points(3, 2))


def test_selects_and_joins_inducing_points() -> None:
    tasks, A = draw_tasks([20, 4, 15, 3], 2), points(5, 2)
    gps = condition(tasks, max_inducing=6)
    torch.testing.assert_close(gps.select([3, 0]).mean(A), gps.mean(A)[[3, 0]])
    parts = gps.select([0, 1]), condition(tasks[2:])
    joined = ConditionedGPs.joined(parts, gps.task_names)
    torch.testing.assert_close(joined.mean(A)[:2], gps.mean(A)[:2])
    torch.testing.assert_close(joined.mean(A)[2], tasks[2].posterior_mean(A))


def test_different_rows() -> None:
    X = points(50, 2).repeat(2, 1)
    assert len(X[different_rows(X, 20)].unique(dim=0)) == 20


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
def test_is_close_to_the_exact_posterior_however_small_the_noise(noise: float) -> None:
    X, A = points(200, 2), points(50, 2, seed=4)
    kernel = {"lengthscale": torch.full((2,), 0.5).double(), "outputscale": torch.tensor(1.0)}
    Y = torch.sin(5 * X.sum(dim=-1)) + noise**0.5 * (points(200, seed=6) - 0.5)
    names = {"mean": torch.tensor(0.0).double(), "kernel": "rbf"}
    task = Task(X=X, Y=Y, noise=torch.full((200,), noise).double(), **kernel, **names)
    exact, gps = condition([task]), condition([task], max_inducing=150)
    error = (gps.mean(A) - exact.mean(A)) / exact.variance(A).sqrt()
    assert error.square().mean().sqrt() < 0.1
    torch.testing.assert_close(gps.variance(A).sqrt(), exact.variance(A).sqrt(), rtol=0.1, atol=0)


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_task_that_cannot_be_distilled_is_named() -> None:
    tasks = draw_tasks([3, 20], 2)
    tasks[1].outputscale.fill_(float("nan"))
    with pytest.raises(InputDataError, match=r"source task 'task 1' is not positive definite"):
        condition(tasks, max_inducing=5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_projection_keeps_the_moments_at_the_inducing_points(kernel: str) -> None:
    covariance = Stationary(kernel, torch.full((2,), 0.4).double(), torch.tensor(1.5).double())
    inducing = InducingPoints.chosen(covariance, points(9, 2), most=9, noise=torch.ones(9))
    Z, K = inducing.points, covariance.between(inducing.points, inducing.points)
    observed, Y = covariance.between(Z, points(6, 2, seed=3)), points(6, 1, seed=4)
    # A posterior that is told of other inputs, by the textbook.
    S = covariance.between(points(6, 2, seed=3), points(6, 2, seed=3)) + 0.1 * torch.eye(6)
    mean = observed @ torch.linalg.solve(S, Y)
    told = K - observed @ torch.linalg.solve(S, observed.mT)
    kept = inducing.project(mean, told)
    torch.testing.assert_close(K @ kept.alpha, mean, atol=1e-8, rtol=0)
    explained = (kept.inverse_root @ K).mT @ (kept.inverse_root @ K)
    torch.testing.assert_close(K - explained, told, atol=1e-8, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_points_between_inputs_are_none_of_them(size: int) -> None:
    kernel = Stationary("rbf", torch.ones(1, 2).double(), torch.tensor(1.0).double())
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double()[:size]
    X = torch.cat([grid, grid])  # duplicates count once
    Z = InducingPoints.between(kernel, X).points
    assert 1 <= len(Z) <= max(1, size // 2)
    assert (Z.unsqueeze(1) == X).all(dim=-1).any() == (size == 1)
    # The mean of the second pair is an input of the first.
    line = torch.tensor([[0.0], [0.75], [1.0], [1.5]]).double()
    assert InducingPoints.between(kernel, line.expand(-1, 2)).points[:, 0].tolist() == [0.875]
