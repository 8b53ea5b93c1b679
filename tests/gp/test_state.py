"""Copies that share tensors, and states that know the names of their tasks."""

import io
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from gpytorch.kernels import AdditiveKernel, RBFKernel, ScaleKernel
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, Sequential

from botorch_transfer.gp.state import NamedState, shallow_copy
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
