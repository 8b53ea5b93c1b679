"""The simulated device; where there is a GPU, what is said of it is checked on CUDA."""

import pickle

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
    "concatenation": lambda x: torch.cat([x, HERE]),
    "stacked scalars": lambda x: torch.stack([x[0], SCALAR]),
    "in place, on the host": lambda x: torch.zeros(3).add_(x),
    "gather": lambda x: x.gather(0, INDEX),
    "the host's tensor at the device's index": lambda x: HERE[x.long() - 1],
    "a mask": lambda x: x.masked_fill(MASK, 0.0),
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


def test_pickles_stay_on_the_device(there):
    for value in (there[1:], nn.Parameter(there)):
        twin = pickle.loads(pickle.dumps(value))
        assert twin.device == there.device
        assert torch.equal(twin, value)
