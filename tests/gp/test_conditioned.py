"""Posteriors of conditioned GPs, exact and on inducing points, against the dense formulas."""

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning

from botorch_transfer.gp import conditioned
from botorch_transfer.gp.conditioned import (
    ConditionedGPs,
    InducingPoints,
    different_rows,
    in_parts,
    inverse_cholesky,
    pad_inputs,
)
from botorch_transfer.gp.stationary import Stationary
from tests.gp.padded import KERNELS, Task, check_draws, condition, draw_tasks, points

sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def all_values(gps: ConditionedGPs, x: torch.Tensor) -> list[torch.Tensor]:
    x2 = points(2, gps.dim, seed=9).to(x)
    return [gps.mean(x), gps.variance(x), gps.covariance(x), gps.covariance(x, x2), gps.cross(x)]


@given(sizes, st.integers(1, 4), st.sampled_from(KERNELS), st.booleans(), st.integers(0, 3))
def test_equals_formulas(sizes: list[int], dim: int, kernel: str, shuffle: bool, extra_rows: int):
    tasks = draw_tasks(sizes, dim, kernel)
    gps = condition(tasks, num_rows=max(sizes) + extra_rows, shuffle=shuffle)
    x1, x2 = points(4, dim), points(3, dim, seed=2)
    for index, task in enumerate(tasks):
        mean, covariance = task.posterior_mean(x1), task.posterior_covariance(x1, x1)
        cross = task.posterior_covariance(x1, x2)
        close = {"atol": 1e-9, "rtol": 0}
        torch.testing.assert_close(gps.mean(x1)[index], mean, **close)
        torch.testing.assert_close(gps.covariance(x1)[index], covariance, **close)
        torch.testing.assert_close(gps.variance(x1)[index], covariance.diagonal(), **close)
        torch.testing.assert_close(gps.covariance(x1, x2)[index], cross, **close)
        torch.testing.assert_close(gps.prior_covariance(x1, x2)[index], task.prior(x1, x2), **close)
        data = gps.cross(x1)[index]
        torch.testing.assert_close(data[:, gps.mask[index]], task.prior(x1, task.X), **close)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("batch_shape", [(2,), (2, 1), (0,), (2, 3)])
def test_batches_are_evaluated_one_by_one(batch_shape: tuple[int, ...], n: int) -> None:
    gps = condition(draw_tasks([5, 3, 4], 2))
    x1, x2 = points(*batch_shape, n, 2), points(*batch_shape, 2, 2, seed=2)
    mean, variance, covariance = gps.mean(x1), gps.variance(x1), gps.covariance(x1)
    pairs, shared = gps.covariance(x1, x2), gps.covariance(x1, points(2, 2, seed=3))
    assert mean.shape == variance.shape == (*batch_shape, 3, n)
    assert covariance.shape == (*batch_shape, 3, n, n)
    assert pairs.shape == shared.shape == (*batch_shape, 3, n, 2)
    close = {"atol": 1e-12, "rtol": 0}
    for index in torch.cartesian_prod(*map(torch.arange, batch_shape)).reshape(
        -1, len(batch_shape)
    ):
        at = tuple(index)
        torch.testing.assert_close(mean[at], gps.mean(x1[at]), **close)
        torch.testing.assert_close(variance[at], gps.variance(x1[at]), **close)
        torch.testing.assert_close(covariance[at], gps.covariance(x1[at]), **close)
        torch.testing.assert_close(pairs[at], gps.covariance(x1[at], x2[at]), **close)
        expected = gps.covariance(x1[at], points(2, 2, seed=3))
        torch.testing.assert_close(shared[at], expected, **close)


@pytest.mark.parametrize("shapes", [((), (5,)), ((3,), (4, 3)), ((3,), (4, 1)), ((1,), (5,))])
def test_single_points_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    gps = condition(draw_tasks([5, 3, 4], 2))
    x1, x2 = (points(*shape, 1, 2, seed=index) for index, shape in enumerate(shapes))
    batch_shape = torch.broadcast_shapes(*shapes)
    expected = gps.covariance(x1.expand(*batch_shape, 1, 2), x2.expand(*batch_shape, 1, 2))
    torch.testing.assert_close(gps.covariance(x1, x2), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gps.covariance(x2, x1), expected.mT, atol=1e-12, rtol=0)
    more = points(4, 2, seed=5)  # the same for all of a batch
    values = gps.covariance(more, x2)
    expected = gps.covariance(more.expand(*shapes[1], 4, 2), x2)
    torch.testing.assert_close(values, expected, atol=1e-12, rtol=0)


def test_no_points() -> None:
    gps = condition(draw_tasks([5, 3], 2))
    assert gps.mean(points(0, 2)).shape == gps.variance(points(0, 2)).shape == (2, 0)
    assert gps.covariance(points(0, 2)).shape == (2, 0, 0)
    assert gps.covariance(points(4, 3, 2), points(0, 2)).shape == (4, 2, 3, 0)


def test_whitened_inputs_are_used() -> None:
    gps = condition(draw_tasks([5, 3], 2))
    x1, x2 = points(4, 3, 2), points(2, 2, seed=2)
    whitened = gps.whiten(x2)
    assert whitened.shape == (2, 5, 2)
    assert torch.equal(gps.covariance(x1, x2, whitened), gps.covariance(x1, x2))
    explained = gps.prior_covariance(x2, x2) - whitened.mT @ whitened
    torch.testing.assert_close(explained, gps.covariance(x2), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_at_the_data(kernel: str) -> None:
    tasks = draw_tasks([4, 2], 2, kernel)
    gps, x = condition(tasks), tasks[0].X[:2].clone().requires_grad_()
    for function in (gps.mean, gps.variance, gps.covariance):
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        assert gradient.isfinite().all()


@settings(max_examples=30)
@given(sizes, st.sampled_from([float("nan"), float("inf"), -1e30, 3.0]), st.booleans())
def test_padding_is_inert_whatever_it_holds(sizes: list[int], garbage: float, shuffle: bool):
    tasks, x = draw_tasks(sizes, 2), points(3, 2)
    clean = condition(tasks, num_rows=9, shuffle=shuffle)
    dirty = condition(tasks, num_rows=9, filling=garbage, shuffle=shuffle)
    for ours, expected in zip(all_values(dirty, x), all_values(clean, x), strict=True):
        assert torch.equal(ours, expected)
    for name, tensor in clean.state_dict().items():
        assert torch.equal(dirty.state_dict()[name], tensor), name


def test_pad_inputs_repeats_one_of_the_tasks_own() -> None:
    X = points(2, 3, 1)
    mask = torch.tensor([[False, True, True], [True, True, False]])
    padded = pad_inputs(X, mask)
    assert torch.equal(padded[mask], X[mask])
    assert padded[0, 0] == X[0, 1]
    assert padded[1, 2] == X[1, 0]


def test_variances_are_never_negative() -> None:
    (task,) = draw_tasks([7], 1)
    precise = Task(**{**vars(task), "noise": torch.full_like(task.noise, 1e-8)})
    for dtype in (torch.float32, torch.float64):
        gps = condition([precise]).to(dtype)
        assert (gps.variance(precise.X.to(dtype)) >= 0).all()
        assert (gps.covariance(precise.X[:1].to(dtype)) >= 0).all()


@pytest.mark.parametrize("move", [lambda gps: gps, lambda gps: gps.float()])
def test_results_have_the_precision_of_the_inputs(move) -> None:
    gps, x = condition(draw_tasks([6, 9], 3)), points(2, 4, 3).float()
    single = move(condition(draw_tasks([6, 9], 3)))
    for ours, expected in zip(all_values(single, x)[:4], all_values(gps, x.double()), strict=False):
        assert ours.dtype is torch.float32
        torch.testing.assert_close(ours, expected.float())
    for tensor in (single.mean(x.double()), single.inverse_root, single.alpha, single.points):
        assert tensor.dtype is torch.float64


def test_nearly_singular_data_in_single_precision() -> None:
    (task,) = draw_tasks([30], 1)
    # Close points on a line, next to no noise: single precision would lose everything.
    smooth = {"Y": torch.sin(4 * task.X[:, 0]), "noise": torch.full_like(task.noise, 1e-8)}
    tensors = vars(Task(**{**vars(task), **smooth}))
    single = {n: t.float().double() if torch.is_tensor(t) else t for n, t in tensors.items()}
    gps = condition([Task(**single)]).float()
    mean, variance = gps.mean(task.X.float())[0], gps.variance(task.X.float())
    torch.testing.assert_close(mean, smooth["Y"].float(), atol=1e-4, rtol=0)
    assert (variance < 1e-7).all()
    x = task.X.float().requires_grad_()
    (gradient,) = torch.autograd.grad(gps.mean(x).sum(), x)
    assert gradient.dtype is torch.float32


def test_tasks_keep_their_order_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups begin with the largest tasks, here the second, third and first."""
    tasks, x = draw_tasks([3, 8, 5], 2), points(3, 2)
    whole = condition(tasks)
    monkeypatch.setattr(conditioned, "FACTOR_ELEMENTS", 1)
    torch.testing.assert_close(all_values(condition(tasks), x), all_values(whole, x))


def test_join_equals_one_batch() -> None:
    tasks, x = draw_tasks([5, 3, 8, 2], 2, "matern52"), points(3, 2)
    whole, parts = condition(tasks), [condition(tasks[:2]), condition(tasks[2:])]
    joined = ConditionedGPs.joined(parts, whole.task_names)
    assert joined.kernel == "matern52"
    torch.testing.assert_close(all_values(joined, x), all_values(whole, x), atol=1e-12, rtol=0)


def test_prior_mean_is_zero_if_omitted() -> None:
    tensors = condition(draw_tasks([3, 2], 2)).tensors()
    del tensors["prior_mean"]
    assert torch.equal(ConditionedGPs(**tensors).prior_mean, torch.zeros(2).double())


def test_task_that_cannot_be_factorized_is_named() -> None:
    tasks = draw_tasks([3, 4], 2)
    tasks[1].X[2] = float("nan")
    with pytest.raises(InputDataError, match="source task 'task 1' is not positive definite"):
        condition(tasks)


def test_inputs_of_another_dimension() -> None:
    gps = condition(draw_tasks([3], 2))
    with pytest.raises(BotorchTensorDimensionError, match="3 columns, but the source tasks have 2"):
        gps.mean(points(4, 3))


def test_unknown_kernel() -> None:
    tensors = condition(draw_tasks([3], 2)).tensors()
    with pytest.raises(ValueError, match="Unknown kernel 'cubic'"):
        ConditionedGPs(**tensors, kernel="cubic")


@pytest.mark.parametrize("shape", [(5, 2), (3, 1, 2), (2, 3, 4, 2)])
def test_moments_are_mean_and_variance(shape: tuple[int, ...]) -> None:
    gps = condition(draw_tasks([4, 2, 5], 2))
    together, apart = (points(*shape).requires_grad_() for _ in range(2))
    moments, expected = gps.moments(together), (gps.mean(apart), gps.variance(apart))
    torch.testing.assert_close(moments, expected)
    sum(part.sin().sum() for part in moments).backward()
    sum(part.sin().sum() for part in expected).backward()
    torch.testing.assert_close(together.grad, apart.grad)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (2, 3, 2)])
def test_sharing_changes_nothing_but_the_number_of_evaluations(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    gps, x, other = condition(draw_tasks([6, 4], dim=2)), points(*shape, 2), points(5, 2)
    x.requires_grad_()
    evaluate, evaluated = ConditionedGPs.flat_cross, []

    def counted(self: ConditionedGPs, flat: torch.Tensor) -> torch.Tensor:
        evaluated.append(flat.shape[-2])
        return evaluate(self, flat)

    def values() -> list[torch.Tensor]:
        return [gps.mean(x), gps.variance(x), gps.covariance(x), gps.covariance(x, other)]

    expected = values()
    monkeypatch.setattr(ConditionedGPs, "flat_cross", counted)
    with gps.sharing(x):
        found = values()
        torch.testing.assert_close(gps.mean(x + 1.0), gps.mean(x.detach() + 1.0))
    number = x[..., 0].numel()
    assert evaluated == [number, 5, number, number]  # x, the others, and twice x + 1
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)
        grads = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (left, right)]
        torch.testing.assert_close(*grads)
    gps.mean(x)
    assert len(evaluated) == 5  # nothing is remembered


def test_inverse_cholesky_adds_jitter() -> None:
    singular = torch.ones(1, 3, 3).double()
    with pytest.warns(NumericalWarning, match="added jitter"):
        inverse = inverse_cholesky(singular, lambda task, row: f"{task}")
    recovered = torch.linalg.inv(inverse)
    torch.testing.assert_close(recovered @ recovered.mT, singular, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("bad", [torch.nan, -1.0])
def test_inverse_cholesky_names_what_fails(bad: float) -> None:
    covariance = torch.eye(3).double().repeat(3, 1, 1)
    covariance[2, 1, 1] = bad
    with pytest.raises(InputDataError, match="'2, row 1' is not positive definite: check the inp"):
        inverse_cholesky(covariance, lambda task, row: f"{task}, row {row}")


def test_blocks_are_larger_on_a_device(device, monkeypatch) -> None:
    monkeypatch.setattr(conditioned, "MAX_ELEMENTS", 40)
    for place, expected in (("cpu", [4] * 25), (device, [100])):
        sizes: list[int] = []

        def function(x: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(len(x))
            return x.sum(dim=-1)

        total = in_parts(function, torch.ones(100, 2, device=place), width=10)
        assert total.cpu().tolist() == [2.0] * 100
        assert sizes == expected


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
