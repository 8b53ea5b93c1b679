import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from botorch_transfer.gp.state import Cache, collapse_batch, same_inputs
from tests.gp.padded import points


class Counting:
    """A function that counts its evaluations, and depends on a state."""

    def __init__(self) -> None:
        self.calls = 0
        self.state = torch.ones(1)

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.state * x.square()


def test_remembers_by_value() -> None:
    function, cache, x = Counting(), Cache(), points(3, 2)
    value = cache(function, x, function.state)
    assert torch.equal(value, x.square())
    assert cache(function, x.clone(), function.state) is value
    assert function.calls == 1


def test_other_values_and_shapes_are_new() -> None:
    function, cache, x = Counting(), Cache(), points(3, 2)
    cache(function, x, function.state)
    assert torch.equal(cache(function, x + 1, function.state), (x + 1).square())
    assert cache(function, x.unsqueeze(0), function.state).shape == (1, 3, 2)
    assert function.calls == 3


def test_equal_values_in_another_precision_are_new() -> None:
    function, cache, x = Counting(), Cache(), torch.tensor([[0.25], [0.5]])
    cache(function, x.double(), function.state)
    assert cache(function, x, function.state).dtype is torch.float32


def test_large_values_are_not_remembered() -> None:
    function, cache, x = Counting(), Cache(max_elements=5), points(3, 2)
    for _ in range(2):
        cache(function, x, function.state)
    assert function.calls == 2
    for _ in range(2):
        cache(function, x[:2], function.state)
    assert function.calls == 3


def test_state_from_inference_mode() -> None:
    function, cache, x = Counting(), Cache(), points(3, 2)
    with torch.inference_mode():
        function.state = torch.ones(1)
    for _ in range(2):
        cache(function, x, function.state)
    assert function.calls == 1


def test_threads_can_share_it() -> None:
    cache, state = Cache(), torch.ones(1)

    def evaluate(seed: int) -> bool:
        x = torch.full((2, 1), float(seed % 5))
        return torch.equal(cache(torch.square, x, state), x.square())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(evaluate, range(400)))


def test_inputs_changed_in_place_are_new() -> None:
    function, cache, x = Counting(), Cache(), points(3, 2)
    cache(function, x, function.state)
    x[0] = 5.0
    assert torch.equal(cache(function, x, function.state), x.square())


def test_nan_is_never_remembered() -> None:
    function, cache = Counting(), Cache()
    x = torch.tensor([torch.nan])
    cache(function, x, function.state)
    cache(function, x, function.state)
    assert function.calls == 2


@given(st.integers(1, 4))
def test_forgets_the_oldest(size: int) -> None:
    function, cache = Counting(), Cache(size)
    inputs = [torch.full((1,), float(index)) for index in range(size + 1)]
    for x in inputs:
        cache(function, x, function.state)
    for x in reversed(inputs):
        cache(function, x, function.state)
    assert function.calls == size + 2


def test_what_is_used_again_stays() -> None:
    function, cache = Counting(), Cache(size=2)
    x = points(3, 2)
    for other in range(5):
        cache(function, x, function.state)
        cache(function, x + other + 1, function.state)
    assert function.calls == 1 + 5


def test_inputs_with_a_graph_pass_through() -> None:
    function, cache = Counting(), Cache()
    x = points(3, 2).requires_grad_()
    for _ in range(2):
        value = cache(function, x, function.state)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        torch.testing.assert_close(gradient, 2 * x)
    cache(function, x.detach(), function.state)
    assert function.calls == 3


def test_remembered_values_carry_no_graph() -> None:
    function, cache = Counting(), Cache()
    function.state.requires_grad_()
    assert not cache(function, points(3, 2), function.state).requires_grad


@pytest.mark.parametrize("replace", [True, False])
def test_forgets_when_the_state_changes(replace: bool) -> None:
    function, cache, x = Counting(), Cache(), points(3, 2)
    cache(function, x, function.state)
    if replace:
        function.state = torch.full((1,), 3.0)
    else:
        function.state.mul_(3.0)
    assert torch.equal(cache(function, x, function.state), 3 * x.square())


def test_values_from_inference_mode_can_enter_a_fit() -> None:
    function, cache, weight = Counting(), Cache(), torch.ones(1, requires_grad=True)
    with torch.inference_mode():
        x = points(3, 2)
        cache(function, x, function.state)
    (weight * cache(function, x.clone(), function.state)).sum().backward()
    assert function.calls == 1
    torch.testing.assert_close(weight.grad.double(), x.square().sum().reshape(1))


def test_copies_share_what_is_remembered_and_part_afterwards() -> None:
    function, cache, x = Counting(), Cache(), points(3, 2)
    value = cache(function, x, function.state)
    twin = deepcopy(cache)
    assert twin(function, x, function.state) is value
    twin(function, x + 1, function.state)
    cache(function, x + 1, function.state)
    assert function.calls == 3


def test_pickles_start_empty_and_keep_their_size() -> None:
    function, cache, x = Counting(), Cache(size=3), points(3, 2)
    cache(function, x, function.state)
    assert len(pickle.dumps(cache)) == len(pickle.dumps(Cache(size=3)))
    twin = pickle.loads(pickle.dumps(cache))
    for shift in (0, 1, 2, 0):
        twin(function, x + shift, function.state)
    assert function.calls == 4


def test_values_of_any_kind_are_remembered() -> None:
    cache, x, state = Cache(size=1, max_elements=1), points(3, 2), torch.ones(1)
    value = cache(lambda x: (x, x), x, state)
    assert cache(lambda x: None, x, state) is value


@pytest.mark.parametrize("index", [0, 1])
def test_all_of_the_state_counts(index: int) -> None:
    cache, x, state = Cache(), points(3, 2), [torch.ones(1), torch.ones(1)]
    cache(lambda x: 1, x, *state)
    state[index] = torch.ones(1)
    assert cache(lambda x: 2, x, *state) == 2
    assert cache(lambda x: 3, x, *state[:1]) == 3


def test_collapse_batch() -> None:
    x = points(4, 2)
    assert collapse_batch(x) is x
    assert torch.equal(collapse_batch(x.expand(3, 5, 4, 2)), x)
    assert torch.equal(collapse_batch(x.repeat(3, 1, 1)), x)
    other = points(3, 4, 2)
    assert collapse_batch(other) is other
    empty = points(3, 0, 2)
    assert collapse_batch(empty) is empty


def test_same_inputs() -> None:
    x = points(3, 2)
    assert same_inputs(x, x)
    assert same_inputs(x, x.clone())
    assert not same_inputs(x, x[:2])
    assert not same_inputs(x, x + 1)
    graph = x.clone().requires_grad_()
    assert same_inputs(graph, graph)
    assert not same_inputs(x, graph)  # equal values, but other derivatives
