from __future__ import annotations

import pytest
import torch
from botorch.test_functions import Hartmann

from botorch_transfer.test_functions import Hartmann3Family, Hartmann6Family

FAMILIES = {3: Hartmann3Family, 6: Hartmann6Family}


@pytest.mark.parametrize("dim", FAMILIES)
def test_defaults_are_the_original_function(dim):
    task, original = FAMILIES[dim](), Hartmann(dim=dim)
    X = torch.rand(50, dim, dtype=torch.double)
    torch.testing.assert_close(task(X), original(X), rtol=1e-6, atol=1e-6)
    assert task.optimal_value == pytest.approx(original.optimal_value, abs=1e-5)
    torch.testing.assert_close(task.optimizers, original.optimizers, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dim", FAMILIES)
def test_each_weight_scales_its_bump(dim):
    X = torch.rand(20, dim, dtype=torch.double)
    bumps = torch.stack([FAMILIES[dim](*row)(X) for row in torch.eye(4).tolist()])
    weights = [1.01, 1.19, 2.9, 3.3]
    expected = torch.tensor(weights, dtype=torch.double) @ bumps
    torch.testing.assert_close(FAMILIES[dim](*weights)(X), expected)
    assert (bumps < 0).all()


@pytest.mark.parametrize("family", FAMILIES.values())
def test_parameters_are_in_the_papers_ranges(family):
    alphas = torch.tensor([task.alpha for task in family.sample(200, seed=0)])
    low, high = torch.tensor([1.0, 1.18, 2.8, 3.2]), torch.tensor([1.02, 1.2, 3.0, 3.4])
    share = (alphas - low) / (high - low)
    assert share.min() >= 0
    assert share.max() <= 1
    assert (share.amin(0) < 0.05).all()
    assert (share.amax(0) > 0.95).all()


def test_six_dimensions_have_the_optimum_in_one_of_two_places():
    tasks = [Hartmann6Family(1.01, 1.19, *weights) for weights in [(3.0, 3.2), (2.8, 3.4)]]
    places = torch.cat([task.optimizers for task in tasks])
    centers = torch.tensor(Hartmann6Family._P, dtype=torch.double)
    nearest = torch.cdist(places, centers).argmin(dim=-1)
    assert nearest.tolist() == [2, 3]


@pytest.mark.parametrize("dim", FAMILIES)
def test_single_precision(dim):
    task = FAMILIES[dim](dtype=torch.float)
    assert task(torch.rand(4, dim)).dtype == torch.float
