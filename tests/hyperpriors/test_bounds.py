from __future__ import annotations

import torch
from gpytorch.priors import GammaPrior, UniformPrior
from scipy import stats

from botorch_transfer.hyperpriors.spec import start_and_bounds


def test_the_unbounded_corner_is_cut_off():
    start, lower, upper = start_and_bounds(GammaPrior(0.5, 2.0))
    assert start == 0.25
    expected = stats.gamma.ppf(0.01, 0.5, scale=0.5)
    torch.testing.assert_close(float(lower), expected, rtol=1e-5, atol=0)
    assert upper == 250.0


def test_a_density_that_vanishes_at_zero_needs_no_more_than_a_bound():
    start, lower, _ = start_and_bounds(GammaPrior(2.0, 4.0))
    torch.testing.assert_close(lower, 1e-4 * start)


def test_each_input_has_bounds_of_its_own():
    prior = GammaPrior(torch.tensor([0.5, 2.0]), torch.tensor([2.0, 4.0]))
    for column, (shape, rate) in enumerate([(0.5, 2.0), (2.0, 4.0)]):
        alone = start_and_bounds(GammaPrior(shape, rate))
        for together, single in zip(start_and_bounds(prior), alone, strict=True):
            torch.testing.assert_close(together[column], single)


def test_bounds_of_a_uniform_distribution():
    bounds = start_and_bounds(UniformPrior(torch.tensor(1.0), torch.tensor(3.0)))
    assert [float(part) for part in bounds] == [2.0, 1.0, 3.0]
