"""Maximization of an acquisition function over a search space."""

import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP

from botorch_transfer import CategoricalParameter, FloatParameter, IntegerParameter, SearchSpace
from botorch_transfer.suggestion import region as region_room
from botorch_transfer.suggestion.constraints import read_constraint
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import NUM_STARTS, ExhaustedSpaceError, is_among, maximize


class Peak(AcquisitionFunction):
    """The logarithm of an improvement that falls by hundreds of orders of magnitude."""

    def __init__(self) -> None:
        super().__init__(SingleTaskGP(torch.zeros(1, 3).double(), torch.zeros(1, 1).double()))

    def forward(self, X):
        return -2000 * (X - 0.2).square().sum(dim=(-2, -1))


def test_moving_to_the_middle_costs_next_to_nothing_of_an_improvement():
    region = Region(SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "abc"]))
    none = torch.empty(0, 3, dtype=torch.double)
    x = maximize(Peak(), region, none, none, is_logarithm=True, seed=0)
    assert Peak()(x[None, None]).item() >= -np.log(1.01)
    # What is flat in an input stays in its middle.
    flat = Region(SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "abcd"]))
    none = torch.empty(0, 4, dtype=torch.double)
    peak = Peak()
    peak.forward = lambda X: Peak.forward(peak, X[..., :3])
    x = maximize(peak, flat, none, none, is_logarithm=True, seed=0)
    assert x[3].item() == pytest.approx(0.5)
    # If the row in the middle is taken, the row before the move is the result.
    again = maximize(peak, flat, x.unsqueeze(0), none, is_logarithm=True, seed=0)
    assert not is_among(again.unsqueeze(0), x.unsqueeze(0)).any()


def test_gradients_keep_a_zero_that_a_condition_compares():
    space = SearchSpace([FloatParameter(name, 0.0, 1.0) for name in "ab"])
    region = Region(space, constraints=read_constraint("a == 0 or b >= 0.5", space))
    X = torch.tensor([[0.0, 0.2], [0.7, 0.6]], dtype=torch.double)
    assert region.fixed_features(X) == [{0: 0.0}, {}]


def test_all_rows_of_a_finite_space_are_found_once():
    region = Region(SearchSpace([CategoricalParameter("a", ("x", "y", "z"))]))
    taken, none = torch.empty(0, 3, dtype=torch.double), torch.empty(0, 3, dtype=torch.double)
    for _ in range(3):
        x = maximize(Peak(), region, taken, none, is_logarithm=True, seed=0)
        assert not is_among(x.unsqueeze(0), taken).any()
        taken = torch.cat([taken, x.unsqueeze(0)])
    with pytest.raises(
        ExhaustedSpaceError, match=r"Too few rows are left.* omit fixed= or same_in_batch="
    ):
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
    x = maximize(acquisition, region, taken, taken, is_logarithm=True, seed=0)
    assert abs(float(x) - 0.5) < 0.1


class Near(AcquisitionFunction):
    """Minus the squared distance from a row."""

    def __init__(self, x):
        super().__init__(SingleTaskGP(x[None], x[None, :1]))
        self.x = x

    def forward(self, X):
        return -(X - self.x).square().sum(dim=(-2, -1))


LARGE = {
    "integers": ([IntegerParameter(name, 1, 15) for name in "abc"], []),
    "categories": ([CategoricalParameter(name, tuple("uvwxyz")) for name in "abcde"], []),
    "steps": ([FloatParameter(name, 0.0, 1.0, step=0.02) for name in "ab"], []),
    "fractions": ([FloatParameter(name, 0.0, 1.0, step=0.2) for name in "abc"], ["a + b + c == 1"]),
    "conditional": (
        [
            CategoricalParameter("kind", ("x", "y")),
            IntegerParameter("a", 1, 50),
            IntegerParameter("b", 1, 50, active_if={"kind": ["x"]}),
        ],
        [],
    ),
    "constrained": ([IntegerParameter(name, 1, 15) for name in "abc"], ["a + b <= 20"]),
    "all of them": (
        [
            CategoricalParameter("kind", ("x", "y", "z")),
            IntegerParameter("a", 1, 15),
            *(FloatParameter(name, 0.0, 1.0, step=0.1) for name in "bc"),
        ],
        ["a + 10 * b <= 12", "b + c <= 1"],
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_best_row_that_is_not_taken_is_found(name):
    parameters, texts = LARGE[name]
    space = SearchSpace(parameters)
    region = Region(space, constraints=[c for t in texts for c in read_constraint(t, space)])
    rows = space.encode(space.grid())
    rows = rows[region.allows(rows)]
    acquisition = Near(region.sample(1, seed=1)[0])
    values = acquisition(rows.unsqueeze(-2))
    taken = rows[:0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_room, "MAX_GRID", 100)
        for _ in range(3):
            x = maximize(acquisition, region, taken, taken, is_logarithm=False, seed=0)
            free = values[~is_among(rows, taken)]
            assert not is_among(x.unsqueeze(0), taken).any()
            assert acquisition(x[None, None]).item() == pytest.approx(float(free.max()), abs=1e-9)
            taken = torch.cat([taken, x.unsqueeze(0)])


def test_a_row_beside_taken_ones_keeps_its_number():
    """A taken best row of a mixed space leads to its neighbours in the integer."""
    region = Region(SearchSpace([IntegerParameter("a", 1, 50), FloatParameter("b", 0.0, 1.0)]))
    best = region.nearest(torch.tensor([[0.4, 0.3]], dtype=torch.double))
    x = maximize(Near(best[0]), region, best, best, is_logarithm=False, seed=0)
    assert float((x - best[0]).abs().max()) < 0.03


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
    x = maximize(acquisition, region, none, none, is_logarithm, seed=0)
    assert x[0].item() == pytest.approx(0.8, abs=0.05)
    assert x[1].item() == pytest.approx(0.3, abs=0.05)


def test_gradients_improve_all_starts_of_all_choices_at_once():
    """A choice stays as it is, and an evaluation is of every start that goes on."""

    class Hill(AcquisitionFunction):
        def forward(self, X):
            if X.requires_grad:
                evaluated.append(X.detach().squeeze(-2))
            best = X.new_tensor([0.3, 0.0, 0.5, 0.0, 0.41])
            weight = X.new_tensor([1.0, 1e-3, 1e-3, 1e-3, 1.0])
            return -(weight * (X - best).square()).sum(dim=(-2, -1))

    kind = CategoricalParameter("kind", ("x", "y", "z"))
    region = Region(SearchSpace([FloatParameter("a", 0, 1), kind, FloatParameter("b", 0, 1)]))
    none = torch.empty(0, 5, dtype=torch.double)
    evaluated: list[torch.Tensor] = []
    x = maximize(Hill(Peak().model), region, none, none, is_logarithm=False, seed=0)
    torch.testing.assert_close(x, torch.tensor([0.3, 0, 1, 0, 0.41]).double(), atol=0.05, rtol=0)
    first = evaluated[0]
    assert len(first) == 3 * NUM_STARTS
    assert len(first[:, 1:4].unique(dim=0)) == 3
    for X in evaluated:
        assert (X[:, 1:4].sort(dim=-1).values == torch.tensor([0.0, 0.0, 1.0])).all()
    assert len(evaluated) < 12
