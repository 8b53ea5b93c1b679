"""The simulated device; where there is a GPU, what is said of it is checked on CUDA."""

import io
import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.devices import waits

HERE = torch.arange(1.0, 4.0)
SCALAR, INDEX, MASK = torch.tensor(2.0), torch.tensor([0, 2]), torch.tensor([True, False, True])


@pytest.fixture
def there(device: str) -> Tensor:
    return HERE.to(device)


REFUSED = {
    "elementwise": lambda x: x + HERE,
    "one element with a dimension": lambda x: x * torch.ones(1),
    "product": lambda x: x @ HERE,
    "concatenation": lambda x: torch.cat([x, HERE]),
    "stacked scalars": lambda x: torch.stack([x[0], SCALAR]),
    "in place, on the host": lambda x: torch.zeros(3).add_(x),
    "in place, a scalar on the host": lambda x: torch.zeros(()).add_(x[0]),
    "gather": lambda x: x.gather(0, INDEX),
    "index_select": lambda x: x.index_select(0, INDEX),
    "the host's tensor at the device's index": lambda x: HERE[x.long() - 1],
    "a mask": lambda x: x.masked_fill(MASK, 0.0),
    "where": lambda x: torch.where(MASK, x, 0.0),
    "values to set": lambda x: x.clone().__setitem__(INDEX, HERE[:2]),
    "the host's generator": lambda x: torch.rand(2, generator=torch.Generator(), device=x.device),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_both_sides_are_refused(name, there):
    with pytest.raises(RuntimeError, match=r"same device|device type for generator"):
        REFUSED[name](there)


ALLOWED = {
    "a scalar": lambda x: SCALAR * x,
    "a scalar in where": lambda x: torch.where(x > 1.5, x, SCALAR),
    "a scalar to fill with": lambda x: x.clone().masked_fill_(x > 1.5, SCALAR),
    "an index": lambda x: x[INDEX],
    "a mask as an index": lambda x: x[MASK],
    "a list": lambda x: x[[0, 2]],
    "an empty list": lambda x: x[[]],
    "an index to set": lambda x: x.index_put((INDEX,), x[:2]),
    "a generator": lambda x: torch.rand(
        2, generator=torch.Generator(x.device).manual_seed(0), device=x.device
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_scalars_and_indices_may_come_from_the_host(name, there):
    result = ALLOWED[name](there)
    assert result.device == there.device
    assert result.shape == ALLOWED[name](HERE).shape


def test_numpy_is_refused(there):
    for convert in (np.asarray, lambda x: x.numpy()):
        with pytest.raises(TypeError, match=r"can't convert .* to numpy"):
            convert(there)


WAITS = {
    "item": (lambda x: float(x[0]), 1),
    "condition": (lambda x: bool((x > 0).all()), 1),
    "list": (lambda x: x.tolist(), 1),
    "to the host": (lambda x: x.cpu(), 1),
    "from the host": (lambda x: HERE.to(x.device), 1),
    "numbers": (lambda x: torch.tensor([1.0, 2.0], device=x.device), 1),
    "mask": (lambda x: x[x > 1.5], 1),
    "nonzero": (lambda x: x.nonzero(), 1),
    "equal": (lambda x: torch.equal(x, x.clone()), 1),
    "equal, the same memory": (lambda x: torch.equal(x, x.detach()), 0),
    "equal, other shapes": (lambda x: torch.equal(x, x[1:]), 0),
    "safe Cholesky": (lambda x: torch.linalg.cholesky(x.diag()), 1),
    "Cholesky": (lambda x: torch.linalg.cholesky_ex(x.diag()), 0),
    "arithmetic": (lambda x: (x.exp() @ x).softmax(0), 0),
    "zeros": (lambda x: torch.zeros_like(x) + x.new_zeros(3), 0),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_are_counted(name, there):
    run, expected = WAITS[name]
    run(there)
    assert waits(lambda: run(there)).total() == expected


def test_numbers_are_the_cpus(there):
    def compute(x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        root = torch.linalg.cholesky(x.diag() + x.outer(x))
        (gradient,) = torch.autograd.grad(root.sum() + x[:2].square().prod(), x)
        view = x.detach().clone()
        view[1:].mul_(3.0)
        return [root.detach(), gradient, view.unsqueeze_(0), *x.detach().max(dim=0)]

    for ours, expected in zip(compute(there), compute(HERE), strict=True):
        assert ours.device.type == there.device.type
        torch.testing.assert_close(ours.cpu(), expected)


def saved(value: object) -> object:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved])
@pytest.mark.parametrize("is_parameter", [False, True])
def test_copies_stay_on_the_device(copied, is_parameter, there):
    original = nn.Parameter(there) if is_parameter else there[1:]
    copy = copied(original)
    assert copy.device == original.device
    assert copy.requires_grad == is_parameter == isinstance(copy, nn.Parameter)
    assert torch.equal(copy, original)
    with torch.no_grad():
        copy.add_(1.0)
    assert not torch.equal(copy, original)


def test_modules_move_and_learn(device):
    module = nn.Linear(2, 1).to(device)
    assert {parameter.device.type for parameter in module.parameters()} == {device}
    optimizer = torch.optim.Adam(module.parameters())
    before = deepcopy(module.state_dict())
    module(torch.ones(3, 2, device=device)).sum().backward()
    optimizer.step()
    assert not torch.equal(module.weight, before["weight"])
    module.load_state_dict(before)
    assert torch.equal(module.weight, before["weight"])
    module.weight.data = torch.zeros_like(module.weight)
    assert module.double().weight.tolist() == [[0.0, 0.0]]


def test_tensors_and_generators_are_made_there(device):
    assert torch.tensor([1.0], device=device).device.type == device
    assert torch.as_tensor(np.ones(2), device=device).device.type == device
    assert torch.tensor([torch.ones((), device=device), 2.0]).tolist() == [1.0, 2.0]
    assert isinstance(torch.Generator(device), torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    with torch.random.fork_rng():
        torch.manual_seed(1)
