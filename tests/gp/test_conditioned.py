import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning

from botorch_transfer.gp import conditioned, posterior
from botorch_transfer.gp.conditioned import ConditionedGPs, pad_inputs
from botorch_transfer.gp.posterior import in_parts, inverse_cholesky
from tests.gp.padded import KERNELS, Task, condition, draw_tasks, points

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


def test_zeros_of_a_large_factor_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    gps, x = condition(draw_tasks([8, 8], 2)), points(5, 2).requires_grad_()
    expected = gps.whiten(x)
    weights = points(*expected.shape, seed=3).double()
    (expected_gradient,) = torch.autograd.grad((weights * expected).sum(), x)
    monkeypatch.setattr(posterior, "BLOCK", 3)
    above = torch.ones(8, 8).triu(1).bool() & (torch.arange(8) // 3 > torch.arange(8)[:, None] // 3)
    gps.inverse_root = gps.inverse_root.masked_fill(above, torch.nan)
    found = gps.whiten(x)
    (gradient,) = torch.autograd.grad((weights * found).sum(), x)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=1e-12)


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


def test_reach_is_exact_for_a_single_point() -> None:
    gps = condition(draw_tasks([1, 1], 2))
    at_points = torch.stack([gps.mean(X)[i, 0] for i, X in enumerate(gps.points)])
    torch.testing.assert_close(gps.reach, (at_points - gps.prior_mean).abs())


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
    monkeypatch.setattr(posterior, "MAX_ELEMENTS", 40)
    for place, expected in (("cpu", [2] * 50), (device, [100])):
        sizes: list[int] = []

        def function(x: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(len(x))
            return x.sum(dim=-1)

        total = in_parts(function, torch.ones(100, 2, device=place), width=10, cpu_divisor=2)
        assert total.cpu().tolist() == [2.0] * 100
        assert sizes == expected
