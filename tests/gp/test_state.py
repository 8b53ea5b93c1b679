"""Copies that share tensors, and states that know the names of their tasks."""

import io
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import pytest
import torch
from gpytorch.kernels import AdditiveKernel, RBFKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, Sequential

from botorch_transfer.gp.state import Cache, NamedState, collapse_batch, same_inputs, shallow_copy
from tests.gp.padded import condition, draw_tasks, points


def test_shallow_copy_shares_tensors() -> None:
    module = Sequential(Linear(2, 3), BatchNorm1d(3))
    twin = shallow_copy(module)
    assert twin[0] is not module[0]
    assert twin[0].weight is module[0].weight
    assert twin[1].running_mean is module[1].running_mean


def test_shallow_copy_has_registers_of_its_own() -> None:
    module = Sequential(Linear(2, 3), BatchNorm1d(3))
    twin = shallow_copy(module)
    twin[1].running_mean = torch.ones(3)
    del twin[0]
    assert len(module) == 2
    assert not module[1].running_mean.any()


@pytest.mark.parametrize("copy", [deepcopy, shallow_copy])
def test_moving_a_copy_leaves_the_original(copy) -> None:
    gps = condition(draw_tasks([4, 2], 2))
    twin = copy(gps)
    assert twin.alpha is gps.alpha
    twin.to("meta")
    assert twin.alpha.device.type == twin.mask.device.type == "meta"
    assert gps.alpha.device.type == gps.mask.device.type == "cpu"


@pytest.mark.parametrize("move", [Module.float, Module.half, lambda gps: gps.to(torch.float32)])
def test_stays_in_double_precision(move) -> None:
    gps, x = condition(draw_tasks([4, 2], 2)), points(3, 2)
    before = gps.mean(x)
    move(gps)
    assert gps.mask.dtype is torch.bool
    assert torch.equal(gps.mean(x), before)


@pytest.mark.parametrize("copy", [deepcopy, shallow_copy])
@pytest.mark.parametrize("assign", [False, True])
def test_loading_into_a_copy_leaves_the_original(copy, assign: bool) -> None:
    gps, other = condition(draw_tasks([4, 2], 2)), condition(draw_tasks([4, 2], 2, seed=1))
    x = points(3, 2)
    before = gps.mean(x), gps.covariance(x)
    twin = copy(gps)
    twin.load_state_dict(other.state_dict(), assign=assign)
    assert torch.equal(twin.mean(x), other.mean(x))
    assert torch.equal(twin.covariance(x), other.covariance(x))
    assert torch.equal(gps.mean(x), before[0])
    assert torch.equal(gps.covariance(x), before[1])


def test_loading_into_the_original_leaves_its_copies() -> None:
    gps, other = condition(draw_tasks([4, 2], 2)), condition(draw_tasks([4, 2], 2, seed=1))
    x = points(3, 2)
    twin, before = shallow_copy(gps), gps.mean(x)
    gps.load_state_dict(other.state_dict())
    assert torch.equal(gps.mean(x), other.mean(x))
    assert torch.equal(twin.mean(x), before)


class Named(NamedState):
    """A module with as little as possible that is of tasks."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.task_names = names
        self.register_buffer("data", torch.rand(2))


def stored(state: Mapping[str, Tensor]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kept", [lambda state: state, deepcopy, stored])
def test_a_state_of_other_tasks_is_refused(kept: Callable[..., Any]) -> None:
    theirs, ours = Sequential(Named("a", "b")), Sequential(Named("a", "c"))
    before = ours[0].data.clone()
    state = kept(theirs.state_dict())
    with pytest.raises(RuntimeError, match="the task 'b', but this Named has the task 'c'"):
        ours.load_state_dict(state)
    assert torch.equal(ours[0].data, before)
    assert list(state) == ["0.data"]  # no further key: earlier versions load it
    Sequential(Named("a", "b")).load_state_dict(state)


def test_states_without_names_load() -> None:
    theirs, numbered = Named("a", "b"), Named("source task 0", "1")
    unnamed = Named()
    for state in (dict(theirs.state_dict()), numbered.state_dict(), unnamed.state_dict()):
        ours = Named("c", "d")
        ours.load_state_dict(state)
        assert torch.equal(ours.data, state["data"])
    numbered.load_state_dict(theirs.state_dict())
    assert torch.equal(numbered.data, theirs.data)
    with pytest.raises(RuntimeError, match="the task 'source task 1', but"):
        Named("c", "d").load_state_dict(Named("source task 1", "d").state_dict())


def test_deepcopy_respects_the_memo() -> None:
    gps = condition(draw_tasks([2], 1))
    first, second = deepcopy([gps, gps])
    assert first is second
    assert first is not gps


def test_shallow_copies_of_kernels_have_registers_of_their_own() -> None:
    """Two copies by ``copy`` would share them: GPyTorch's kernels pickle their dictionary as is."""
    kernel = ScaleKernel(RBFKernel())
    twin = shallow_copy(kernel)
    assert twin.raw_outputscale is kernel.raw_outputscale
    twin.raw_outputscale = torch.nn.Parameter(torch.ones(()))
    twin.base_kernel.register_buffer("other", torch.ones(()))
    assert float(kernel.raw_outputscale.detach()) == 0.0
    assert "other" not in kernel.base_kernel._buffers


def test_a_module_that_is_registered_twice_is_copied_once() -> None:
    kernel = RBFKernel()
    twin = shallow_copy(AdditiveKernel(kernel, kernel))
    assert twin.kernels[0] is twin.kernels[1]
    assert twin.kernels[0] is not kernel


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
