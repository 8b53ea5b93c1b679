"""The posterior of an exact GP, against naive formulas."""

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from linear_operator import to_linear_operator

from botorch_transfer.gp import strategy
from botorch_transfer.gp.strategy import Strategy, joined
from tests.gp.padded import points

X, NEW = points(5, 2), points(3, 2, seed=4)
Y = (4 * X.sum(-1)).sin()
MEAN, KERNEL = ConstantMean().double(), ScaleKernel(RBFKernel()).double()


def build(noise: float = 0.1, rows: slice = slice(None)) -> Strategy:
    return Strategy(MEAN, KERNEL, X[rows], Y[rows], lambda: torch.full_like(Y[rows], noise))


def test_every_point_is_predicted_from_the_others() -> None:
    mean, variance = build().leave_one_out()
    without = build().without_each()
    assert without.X.shape == (5, 4, 2)
    each = without(X.unsqueeze(-2))
    torch.testing.assert_close(mean, each.mean.squeeze(-1))
    torch.testing.assert_close(variance, each.variance.squeeze(-1))


@torch.no_grad()
def test_data_may_be_added() -> None:
    whole, part = build(), build(rows=slice(3))
    for fantasies in (part.with_data(X[3:], Y[3:], torch.full((2,), 0.1)), whole):
        assert (fantasies.given is None) is (fantasies is whole)
        torch.testing.assert_close(fantasies(NEW).mean, whole(NEW).mean)
        covariance = fantasies(NEW).covariance_matrix
        torch.testing.assert_close(covariance, whole(NEW).covariance_matrix)
    shift = torch.ones(4, 2, 1)
    several = part.with_data(X[3:].expand(2, 2, 2), Y[3:] + shift, torch.full((2,), 0.1))
    assert several(NEW).mean.shape == (4, 2, 3)
    assert several(NEW).covariance_matrix.shape == (4, 2, 3, 3)


def test_batches_are_broadcast() -> None:
    assert joined(torch.ones(3, 2), torch.ones(4, 1, 5, 2), event_dims=2).shape == (4, 1, 8, 2)
    assert joined(torch.ones(2, 3), torch.ones(4, 1, 5), event_dims=1).shape == (4, 2, 8)


def test_copies_and_pickles_prepare_it_anew() -> None:
    assert deepcopy(build()) is None
    assert pickle.loads(pickle.dumps(build(), protocol=5)) is None


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_what_cannot_be_factorized_is_refused() -> None:
    with pytest.raises(InputDataError, match="target's data is not positive definite"):
        _ = build(noise=-2.0).weights


def test_a_large_covariance_is_filled_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botorch_transfer.gp.conditioned.MAX_ELEMENTS", 12)
    roots = torch.rand(2, 2, 7, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    terms = [to_linear_operator(root @ root.mT) for root in roots]
    with torch.no_grad():
        found = strategy.LargeCovariance(*terms).to_dense()
    torch.testing.assert_close(found, sum(term.to_dense() for term in terms))
