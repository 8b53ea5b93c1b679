import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.optim.utils import sample_all_priors
from gpytorch.priors import GammaPrior, NormalPrior
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_transfer.gp.combine import (
    MIN_WEIGHT,
    EnsembleWeights,
    SourceWeights,
    TaskWeights,
    WeightedSumKernel,
    WeightedSumMean,
)
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.state import Cache
from tests.gp.padded import condition, draw_tasks, points

TASKS = draw_tasks([5, 2, 7], 2, "matern52")
WEIGHTS = torch.tensor([0.3, 1.2, 0.01], dtype=torch.double)


def build(*batch_shape: int, kind: Any = WeightedSumKernel) -> Any:
    """A kernel or mean with these weights; in a batch, they are multiplied by 1, 2, ..."""
    task_weights = TaskWeights(3, torch.Size(batch_shape)).double()
    factors = torch.arange(1, 1 + torch.Size(batch_shape).numel()).double().reshape(batch_shape)
    task_weights.weights = factors.unsqueeze(-1) * WEIGHTS
    return kind(condition(TASKS), task_weights)


def expected(A: Tensor, B: Tensor, weights: Tensor = WEIGHTS) -> Tensor:
    pairs = zip(weights, TASKS, strict=True)
    return sum(weight**2 * task.posterior_covariance(A, B) for weight, task in pairs)


def check(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs.detach(), atol=1e-9, rtol=0)


def test_formula() -> None:
    kernel, A, B = build(), points(4, 2), points(3, 2, seed=2)
    check(kernel(A).to_dense(), expected(A, A))
    check(kernel(A, B).to_dense(), expected(A, B))
    check(kernel(B, A).to_dense(), expected(B, A))
    check(kernel(A, A.clone()).to_dense(), expected(A, A))


def test_diagonal() -> None:
    kernel, A, B = build(), points(4, 2), points(4, 2, seed=2)
    check(kernel(A, diag=True), expected(A, A).diagonal())
    check(kernel(A, B, diag=True), expected(A, B).diagonal())
    batch = points(2, 4, 2, seed=3)
    torch.testing.assert_close(
        kernel(batch, batch + 0.1, diag=True)[1], kernel(batch[1], batch[1] + 0.1, diag=True)
    )


def test_without_weights_every_task_counts_once() -> None:
    kernel, A = WeightedSumKernel(condition(TASKS)), points(4, 2)
    check(kernel(A).to_dense(), expected(A, A, torch.ones(3)))
    check(kernel(A, diag=True), expected(A, A, torch.ones(3)).diagonal())
    assert kernel.batch_shape == ()
    assert kernel[0] is kernel


def test_batch_of_weights() -> None:
    kernel, A = build(2), points(4, 2)
    values = kernel(A.expand(2, 4, 2)).to_dense()
    check(values[0], expected(A, A))
    check(values[1], 4 * expected(A, A))
    check(kernel[1](A).to_dense(), values[1])
    check(kernel(A.expand(3, 2, 4, 2)).to_dense()[2], values)
    check(kernel(A.expand(2, 4, 2), diag=True), values.diagonal(dim1=-2, dim2=-1))


@settings(max_examples=20)
@given(st.booleans(), st.booleans(), st.booleans(), st.integers(1, 4))
def test_gradients_in_inputs_do_not_depend_on_what_is_remembered(
    first: bool, second: bool, same: bool, n: int
) -> None:
    kernel, other = build(), points(2, 2, seed=2)
    A = points(n, 2).requires_grad_(first)
    B = A if same else other.clone().requires_grad_(second)
    kernel(other).to_dense(), kernel(points(n, 2)).to_dense(), kernel(A.detach(), other).to_dense()
    wanted = [x for x in {id(A): A, id(B): B}.values() if x.requires_grad]
    if wanted:
        weights = points(len(A), len(B), seed=5)
        ours = torch.autograd.grad((weights * kernel(A, B).to_dense()).sum(), wanted)
        theirs = torch.autograd.grad((weights * expected_smooth(A, B)).sum(), wanted)
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6)
    check(kernel(A, B).to_dense(), expected(A, B))


def expected_smooth(A: Tensor, B: Tensor) -> Tensor:
    """The formula from the source GPs themselves, which do not remember anything."""
    gps = condition(TASKS)
    values = gps.covariance(A) if A is B else gps.covariance(A, B)
    return (WEIGHTS.square()[:, None, None] * values).sum(dim=0)


def record_inputs(monkeypatch, method: str) -> list[torch.Size]:
    """Records the shapes of the inputs at which a method of the source GPs is called."""
    shapes, evaluate = [], getattr(ConditionedGPs, method)

    def recorded(self: ConditionedGPs, x: Tensor, *others: Tensor) -> Tensor:
        shapes.append(x.shape)
        return evaluate(self, x, *others)

    monkeypatch.setattr(ConditionedGPs, method, recorded)
    return shapes


def test_source_covariances_at_training_inputs_are_evaluated_once(monkeypatch) -> None:
    kernel, A, X = build(), points(3, 2), points(6, 2, seed=3)
    calls = record_inputs(monkeypatch, "whiten")
    for _ in range(3):
        kernel(X).to_dense()
    assert calls == [(6, 2)]
    calls.clear()
    for step in range(3):
        kernel(A + step, X).to_dense()
        kernel((A + step).requires_grad_(), X.expand(1, 6, 2)).to_dense()
    assert calls.count((6, 2)) == 1


@pytest.mark.parametrize(
    ("shapes", "batch_shape"),
    [
        (((9, 2), None), ()),
        (((9, 2), None), (2,)),
        (((9, 2), (4, 2)), (2,)),
        (((2, 5, 2), (7, 2)), ()),
    ],
)
def test_large_sums_are_those_of_their_parts(monkeypatch, shapes, batch_shape) -> None:
    """Some rows at a time, values and gradients are the same; no graphs are kept."""
    first, second = shapes
    A = points(*first)
    B = A if second is None else points(*second, seed=2)
    if batch_shape and A.dim() == 2:
        A = A.expand(2, *A.shape)
        B = A if second is None else B
    kernel = build(*batch_shape)
    raw = kernel.task_weights.raw_weights

    def evaluate() -> list[Tensor]:
        X = A.clone().requires_grad_()
        value = kernel(X, X if B is A else B).to_dense()
        variance = kernel(X, diag=True)
        mean = WeightedSumMean(kernel.gps, kernel.task_weights)(X)
        with torch.no_grad():
            without_graph = kernel(A, B).to_dense()
        cotangents = [points(*each.shape, seed=5) for each in (value, variance, mean)]
        total = sum(
            (left * right).sum()
            for left, right in zip((value, variance, mean), cotangents, strict=True)
        )
        gradients = torch.autograd.grad(total, [X, raw])
        return [value, variance, mean, without_graph, *gradients]

    whole = evaluate()
    monkeypatch.setattr("botorch_transfer.gp.conditioned.MAX_ELEMENTS", 40)
    kernel._covariance, kernel._whitened = Cache(), Cache()
    parts = record_inputs(monkeypatch, "covariance")
    torch.testing.assert_close(evaluate(), whole)
    assert max(shape[-2] for shape in parts) < A.shape[-2]


def test_variances_of_many_points_need_no_covariances(monkeypatch) -> None:
    kernel, X = build(), points(30, 1, 2)
    expected = kernel(X).to_dense()
    monkeypatch.setattr("botorch_transfer.gp.conditioned.MAX_ELEMENTS", 40)
    monkeypatch.setattr(type(kernel.gps), "whiten", None)
    kernel._covariance = Cache()
    torch.testing.assert_close(kernel(X).to_dense(), expected)


def test_moving_and_loading_do_not_leave_stale_values() -> None:
    kernel, A = build(), points(4, 2)
    kernel(A).to_dense(), kernel(A, A[:2]).to_dense()
    other = WeightedSumKernel(condition(draw_tasks([5, 2, 7], 2, "matern52", seed=1)))
    other.task_weights = deepcopy(kernel.task_weights)
    kernel.load_state_dict(other.state_dict())
    check(kernel(A).to_dense(), other(A).to_dense())
    check(kernel(A, A[:2]).to_dense(), other(A, A[:2]).to_dense())
    values = kernel.float()(A.float()).to_dense()
    assert values.dtype is torch.float32
    torch.testing.assert_close(values.double(), other(A).to_dense(), atol=1e-3, rtol=0)


def mean_expected(x: Tensor, weights: Tensor = WEIGHTS) -> Tensor:
    pairs = zip(weights, TASKS, strict=True)
    return sum(weight * task.posterior_mean(x) for weight, task in pairs)


def test_mean_formula() -> None:
    mean, x = build(kind=WeightedSumMean), points(4, 2)
    check(mean(x), mean_expected(x))
    check(mean(x.unsqueeze(0)), mean_expected(x).unsqueeze(0))


def test_mean_without_weights_every_task_counts_once() -> None:
    mean, x = WeightedSumMean(condition(TASKS)), points(4, 2)
    check(mean(x), mean_expected(x, torch.ones(3)))
    assert mean(x.expand(3, 4, 2)).shape == (3, 4)


def test_mean_batch_of_weights() -> None:
    mean, x = build(2, kind=WeightedSumMean), points(4, 2)
    both = torch.stack([mean_expected(x), 2 * mean_expected(x)])
    check(mean(x.expand(2, 4, 2)), both)
    check(mean(x), both)
    check(mean(x.expand(3, 1, 4, 2)), both.expand(3, 2, 4))


def test_source_means_at_training_inputs_are_evaluated_once(monkeypatch) -> None:
    mean, X = build(kind=WeightedSumMean), points(6, 2)
    calls = record_inputs(monkeypatch, "mean")
    for _ in range(3):
        mean(X)
        mean(X.expand(2, 6, 2))
    assert calls == [(6, 2)]


def test_a_state_of_other_tasks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch for raw_weights"):
        TaskWeights(3).load_state_dict(TaskWeights(2).state_dict())


@given(st.integers(1, 10), st.lists(st.integers(1, 3), max_size=2))
def test_start(num_tasks: int, batch_shape: list[int]) -> None:
    weights = TaskWeights(num_tasks, torch.Size(batch_shape))
    assert weights.batch_shape == torch.Size(batch_shape)
    expected = torch.full((*batch_shape, num_tasks), 1 / num_tasks)
    torch.testing.assert_close(weights.weights, expected, check_dtype=False)
    assert weights.weights.requires_grad


def test_set() -> None:
    weights = TaskWeights(3, torch.Size([2])).double()
    weights.weights = [0.1, 0.2, 3.0]
    expected = torch.tensor([0.1, 0.2, 3.0]).double().expand(2, 3)
    torch.testing.assert_close(weights.weights.detach(), expected, atol=1e-7, rtol=0)
    weights.weights = 0.5
    assert (weights.weights == 0.5).all()


@pytest.mark.parametrize("bad", [-1.0, torch.nan])
def test_negative_weights_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="A task's weight must not be negative"):
        TaskWeights(2).weights = torch.tensor([1.0, bad])


def test_zero_becomes_the_lower_bound() -> None:
    weights = TaskWeights(2)
    weights.weights = torch.tensor([0.0, 1.0])
    torch.testing.assert_close(weights.weights.detach(), torch.tensor([MIN_WEIGHT, 1.0]))


def test_are_optimized_as_they_are_down_to_the_bound() -> None:
    weights = TaskWeights(2)
    assert weights.raw_weights_constraint.lower_bound.item() == pytest.approx(MIN_WEIGHT)
    assert not weights.raw_weights_constraint.enforced
    weights.raw_weights.data[0] = MIN_WEIGHT
    assert torch.equal(weights.weights, weights.raw_weights)


class ScaledShares(SourceWeights):
    """Weights with two parameters, of which one is fitted."""

    def __init__(self, shares: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_parameter("shares", torch.nn.Parameter(shares, requires_grad=False))
        self.register_parameter("scale", torch.nn.Parameter(scale))

    @property
    def weights(self) -> torch.Tensor:
        return self.scale * self.shares


def test_selects_all_parameters_of_the_batch() -> None:
    weights = ScaledShares(torch.rand(3, 4, 2), torch.rand(3, 4, 1))
    assert weights.batch_shape == (3, 4)
    chosen = weights[1, 2]
    assert torch.equal(chosen.weights, weights.weights[1, 2])
    assert torch.equal(chosen.all_weights, chosen.weights)
    assert chosen.get_parameter("scale").requires_grad
    assert not chosen.get_parameter("shares").requires_grad


def test_selects_from_the_batch() -> None:
    weights = TaskWeights(2, torch.Size([3, 4]), GammaPrior(1.0, 1.0))
    weights.weights = 0.1 + torch.rand(3, 4, 2)
    for index in (1, (1, 2), (slice(None), 2), slice(0, 2)):
        chosen = weights[index]
        assert torch.equal(chosen.weights, weights.weights[index])
        assert isinstance(chosen.raw_weights, torch.nn.Parameter)
        assert len(list(chosen.named_priors())) == 1
    assert weights.batch_shape == (3, 4)


def test_selection_is_a_copy() -> None:
    weights = TaskWeights(2, torch.Size([3]))
    weights[0].weights = 3.0
    assert (weights.weights == 0.5).all()


def test_hyperprior() -> None:
    weights = TaskWeights(3, prior=GammaPrior(1.0, 2.0))
    ((name, module, prior, closure, _),) = weights.named_priors()
    assert name == "weights_prior"
    assert torch.equal(prior.log_prob(closure(module)), prior.log_prob(weights.weights))
    sample_all_priors(weights)
    assert (weights.weights >= MIN_WEIGHT).all()
    assert len(weights.weights.unique()) == 3


def test_samples_below_the_bound_are_moved_to_it() -> None:
    weights = TaskWeights(4, prior=NormalPrior(-5.0, 0.1))
    sample_all_priors(weights)
    torch.testing.assert_close(weights.weights.detach(), torch.full((4,), MIN_WEIGHT))


def test_without_hyperprior() -> None:
    assert not list(TaskWeights(3).named_priors())


def test_shares_start_equal_and_are_not_fitted():
    weights = EnsembleWeights(3, torch.Size([2]))
    assert weights.batch_shape == (2,)
    assert weights.weights.shape == (2, 3)
    assert torch.equal(weights.own, torch.tensor([0.25, 0.25]))
    assert not any(parameter.requires_grad for parameter in weights.parameters())


def test_set_normalizes():
    weights = EnsembleWeights(2).double()
    weights.set(torch.tensor([1.0, 0.0, 3.0]))
    assert weights.weights.tolist() == [0.25, 0.0]
    assert float(weights.own) == 0.75
    assert weights.shares.dtype == torch.double


def test_ensemble_selects_from_the_batch():
    weights = EnsembleWeights(2, torch.Size([2]))
    weights.set(torch.tensor([[1.0, 1.0, 2.0], [0.0, 1.0, 0.0]]))
    assert weights[1].weights.tolist() == [0.0, 1.0]
    assert weights[0].batch_shape == ()


def test_travels_with_the_state():
    weights, other = EnsembleWeights(2), EnsembleWeights(2)
    weights.set(torch.tensor([1.0, 0.0, 3.0]))
    other.load_state_dict(weights.state_dict())
    assert torch.equal(other.shares, weights.shares)
    assert torch.equal(pickle.loads(pickle.dumps(weights)).shares, weights.shares)
