from __future__ import annotations

import pytest
import torch
from botorch.test_functions import Branin, Hartmann
from torch.quasirandom import SobolEngine

from botorch_transfer.test_functions import BraninFamily, Hartmann3Family

FAMILIES = [BraninFamily, Hartmann3Family]


def points(task, num: int) -> torch.Tensor:
    unit = SobolEngine(task.dim, seed=1, scramble=True).draw(num, dtype=torch.double)
    return task.bounds[0] + (task.bounds[1] - task.bounds[0]) * unit


@pytest.mark.parametrize(
    ("family", "original"), [(BraninFamily, Branin()), (Hartmann3Family, Hartmann(dim=3))]
)
def test_defaults_are_the_original_function(family, original):
    X = points(family(), 50)
    torch.testing.assert_close(family()(X), original(X), rtol=1e-6, atol=1e-6)
    assert family().optimal_value == pytest.approx(original.optimal_value, abs=1e-4)
    assert family(negate=True).optimal_value == -family().optimal_value
    assert torch.equal(family(negate=True)(X), -family()(X))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_point_is_better_than_the_optimal_value(family):
    for task in family.sample(5, seed=3):
        values = task(points(task, 4096))
        assert task.optimal_value <= values.min() + 1e-9
        assert task.optimal_value > values.min() - 0.1 * values.std()


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_from_the_seed(family):
    X = points(family(), 5)
    few, many = family.sample(2, seed=5), family.sample(4, seed=5, negate=True)
    for one, other in zip(few, many, strict=False):
        assert torch.equal(one(X), -other(X))
    assert not torch.equal(few[0](X), few[1](X))
    assert not torch.equal(few[0](X), family.sample(1, seed=6)[0](X))


def test_parameters_are_in_the_papers_ranges():
    tasks = BraninFamily.sample(200, seed=0)
    for name, (low, high) in BraninFamily._ranges.items():
        values = torch.tensor([getattr(task, name) for task in tasks])
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)
    alphas = torch.tensor([task.alpha for task in Hartmann3Family.sample(200, seed=0)])
    assert ((alphas - torch.tensor([1.01, 1.19, 2.9, 3.3])).abs().mean(0) > 1e-3).all()
    assert ((alphas - torch.tensor([1.01, 1.19, 2.9, 3.3])).abs().amax(0) < 0.101).all()


def test_noise_and_dtype():
    task = BraninFamily(noise_std=1.0)
    X = points(task, 2000)
    residual = task(X) - task(X, noise=False)
    assert float(residual.std()) == pytest.approx(1.0, abs=0.1)
    assert Hartmann3Family(dtype=torch.float)(torch.rand(4, 3)).dtype == torch.float
    with pytest.raises(ValueError, match="within the bounds"):
        task(torch.full((1, 2), 99.0, dtype=torch.double))
