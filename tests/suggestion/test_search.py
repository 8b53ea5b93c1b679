"""Maximization of an acquisition function over a search space."""

import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP

from botorch_transfer import CategoricalParameter, FloatParameter, SearchSpace
from botorch_transfer.suggestion.search import ExhaustedSpaceError, is_among, maximize


class Peak(AcquisitionFunction):
    """The logarithm of an improvement that falls by hundreds of orders of magnitude."""

    def __init__(self) -> None:
        super().__init__(SingleTaskGP(torch.zeros(1, 3).double(), torch.zeros(1, 1).double()))

    def forward(self, X):
        return -2000 * (X - 0.2).square().sum(dim=(-2, -1))


def test_moving_to_the_middle_costs_next_to_nothing_of_an_improvement():
    space = SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "abc"])
    none = torch.empty(0, 3, dtype=torch.double)
    x, value = maximize(Peak(), space, none, none, is_logarithm=True, seed=0)
    assert value >= -np.log(1.01)
    assert Peak()(x[None, None]).item() == pytest.approx(value)
    # What is flat in an input stays in its middle.
    flat = SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "abcd"])
    none = torch.empty(0, 4, dtype=torch.double)
    peak = Peak()
    peak.forward = lambda X: Peak.forward(peak, X[..., :3])
    x, _ = maximize(peak, flat, none, none, is_logarithm=True, seed=0)
    assert x[3].item() == pytest.approx(0.5)


def test_all_rows_of_a_finite_space_are_found_once():
    space = SearchSpace([CategoricalParameter("a", ("x", "y", "z"))])
    taken, none = torch.empty(0, 3, dtype=torch.double), torch.empty(0, 3, dtype=torch.double)
    for _ in range(3):
        x, _ = maximize(Peak(), space, taken, none, is_logarithm=True, seed=0)
        assert not is_among(x.unsqueeze(0), taken).any()
        taken = torch.cat([taken, x.unsqueeze(0)])
    with pytest.raises(ExhaustedSpaceError, match="All configurations"):
        maximize(Peak(), space, taken, none, is_logarithm=True, seed=0)


def test_an_acquisition_never_gets_no_rows():
    """Where the best row found is taken, nothing found is left but the pool."""

    class NotEmpty(AcquisitionFunction):
        def forward(self, X):
            assert len(X)
            return -(X[..., 0, 0] - 0.5).square()

    space = SearchSpace([FloatParameter("x", 0.0, 1.0)])
    taken = torch.tensor([[0.5]], dtype=torch.double)
    acquisition = NotEmpty(SingleTaskGP(taken, taken))
    x, _ = maximize(acquisition, space, taken, taken, is_logarithm=True, seed=0)
    assert abs(float(x) - 0.5) < 0.1
