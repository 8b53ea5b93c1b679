from __future__ import annotations

import torch

from botorch_transfer.pretraining.optimizers import VectorAdam


def start():
    return torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.double))


def gradient(x):
    return torch.stack([4 * x[0] ** 3, x[1] - x[2], x[2].sin()]).detach()


def test_steps_are_pytorch_s():
    x, twin = start(), start()
    adam, expected = VectorAdam(x), torch.optim.Adam([twin])
    for step in range(20):
        learning_rate = 0.1 / (1 + step)
        expected.param_groups[0]["lr"] = learning_rate
        x.grad, twin.grad = gradient(x), gradient(twin)
        adam.step(learning_rate)
        expected.step()
        torch.testing.assert_close(x, twin, rtol=1e-12, atol=1e-12)


def test_it_goes_on_from_its_state():
    x = start()
    adam = VectorAdam(x)
    other = VectorAdam(x)
    other.load_state_dict({"state": {}, "param_groups": []})  # that of the beginning
    for _ in range(3):
        x.grad = gradient(x)
        adam.step(0.1)
    y = torch.nn.Parameter(x.detach().clone())
    other = VectorAdam(y)
    other.load_state_dict(adam.state_dict())
    for _ in range(3):
        x.grad, y.grad = gradient(x), gradient(y)
        adam.step(0.1)
        other.step(0.1)
    assert torch.equal(x, y)
