"""Maximization of an acquisition function over a search space."""

import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP

from botorch_transfer import CategoricalParameter, FloatParameter, SearchSpace
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import ExhaustedSpaceError, is_among, maximize


class Peak(AcquisitionFunction):
    """The logarithm of an improvement that falls by hundreds of orders of magnitude."""

    def __init__(self) -> None:
        super().__init__(SingleTaskGP(torch.zeros(1, 3).double(), torch.zeros(1, 1).double()))

    def forward(self, X):
        return -2000 * (X - 0.2).square().sum(dim=(-2, -1))


def test_moving_to_the_middle_costs_next_to_nothing_of_an_improvement():
    region = Region(SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "abc"]))
    none = torch.empty(0, 3, dtype=torch.double)
    x, value = maximize(Peak(), region, none, none, is_logarithm=True, seed=0)
    assert value >= -np.log(1.01)
    assert Peak()(x[None, None]).item() == pytest.approx(value)
    # What is flat in an input stays in its middle.
    flat = Region(SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "abcd"]))
    none = torch.empty(0, 4, dtype=torch.double)
    peak = Peak()
    peak.forward = lambda X: Peak.forward(peak, X[..., :3])
    x, _ = maximize(peak, flat, none, none, is_logarithm=True, seed=0)
    assert x[3].item() == pytest.approx(0.5)


def test_all_rows_of_a_finite_space_are_found_once():
    region = Region(SearchSpace([CategoricalParameter("a", ("x", "y", "z"))]))
    taken, none = torch.empty(0, 3, dtype=torch.double), torch.empty(0, 3, dtype=torch.double)
    for _ in range(3):
        x, _ = maximize(Peak(), region, taken, none, is_logarithm=True, seed=0)
        assert not is_among(x.unsqueeze(0), taken).any()
        taken = torch.cat([taken, x.unsqueeze(0)])
    with pytest.raises(ExhaustedSpaceError, match="All configurations"):
        maximize(Peak(), region, taken, none, is_logarithm=True, seed=0)


def test_an_acquisition_never_gets_no_rows():
    """Where the best row found is taken, nothing found is left but the pool."""

    class NotEmpty(AcquisitionFunction):
        def forward(self, X):
            assert len(X)
            return -(X[..., 0, 0] - 0.5).square()

    region = Region(SearchSpace([FloatParameter("x", 0.0, 1.0)]))
    taken = torch.tensor([[0.5]], dtype=torch.double)
    acquisition = NotEmpty(SingleTaskGP(taken, taken))
    x, _ = maximize(acquisition, region, taken, taken, is_logarithm=True, seed=0)
    assert abs(float(x) - 0.5) < 0.1


@pytest.mark.parametrize("is_logarithm", [False, True])
def test_a_parameter_with_a_small_effect_is_not_moved_to_the_middle(is_logarithm):
    """The second one decides on less than 1 % of the acquisition, and its optimum is at .3."""
    region = Region(SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "ab"]))
    none = torch.empty(0, 2, dtype=torch.double)
    acquisition = Peak()

    def forward(X):
        value = 1 - (X[..., 0, 0] - 0.8).square() - 0.01 * (X[..., 0, 1] - 0.3).square()
        return value.log() if is_logarithm else value

    acquisition.forward = forward
    x, _ = maximize(acquisition, region, none, none, is_logarithm, seed=0)
    assert x[0].item() == pytest.approx(0.8, abs=0.05)
    assert x[1].item() == pytest.approx(0.3, abs=0.05)
