from __future__ import annotations

import pytest
import torch
from torch.nn import Linear

from botorch_transfer.pretraining.optimizers import FlatParameters


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Linear(2, 1, dtype=torch.double)


def test_vector_and_parameters_are_one(layer):
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    flat = FlatParameters(layer.parameters())
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name])
    flat.vector.data += 1
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name] + 1)
    layer.bias.data.fill_(5.0)
    assert flat.vector[-1] == 5


def test_gradients(layer):
    flat = FlatParameters(layer.parameters())
    layer.weight.sum().mul(3.0).backward()  # the bias has none
    assert flat.gradient.tolist() == [3.0, 3.0, 0.0]
    assert flat.vector.grad is flat.gradient
    layer.bias.sum().backward()  # gradients add up
    assert flat.gradient.tolist() == [3.0, 3.0, 1.0]
    flat.gradient.zero_()
    assert layer.weight.grad.tolist() == [[0.0, 0.0]]


def test_a_step_of_an_optimizer_is_the_same(layer):
    twin = Linear(2, 1, dtype=torch.double)
    twin.load_state_dict(layer.state_dict())
    flat = FlatParameters(layer.parameters())
    optimizers = [torch.optim.Adam([flat.vector], 0.1), torch.optim.Adam(twin.parameters(), 0.1)]
    X = torch.rand(4, 2, dtype=torch.double)
    for _ in range(3):
        for module, optimizer in zip((layer, twin), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=False)
            module(X).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight, twin.weight)
    torch.testing.assert_close(layer.bias, twin.bias)


def test_released_parameters_have_memory_of_their_own(layer):
    flat = FlatParameters(layer.parameters())
    flat.vector.data.fill_(2.0)
    layer.weight.sum().backward()
    flat.release()
    flat.vector.data.fill_(7.0)
    assert layer.weight.tolist() == [[2.0, 2.0]]
    assert layer.bias.untyped_storage().nbytes() == 8
    assert layer.weight.grad is None


def test_no_parameters():
    flat = FlatParameters([])
    assert flat.vector.shape == (0,)
    flat.release()
