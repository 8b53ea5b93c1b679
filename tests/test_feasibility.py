"""The model of failures, and the acquisition function that uses it."""

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, PosteriorMean
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from torch.special import ndtr
from torch.testing import assert_close

from botorch_transfer.feasibility import MAX_OLD, VARIANCE, FeasibilityModel, FeasibleAcquisition


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.double)


def rate(model: FeasibilityModel, X: torch.Tensor) -> torch.Tensor:
    return model.log_probability(X).exp()


TRIED = tensor([0.1, 0.5], [0.9, 0.2]), tensor([0.5, 0.5], [0.52, 0.3])
X = torch.cat(TRIED)
POINTS = tensor([0.5, 0.45], [0.5, 0.9], [0.65, 0.5], [0.1, 0.4], [0.3, 0.1])


def test_it_is_the_posterior_of_the_probit_model():
    """By importance sampling from the prior."""
    model = FeasibilityModel(*TRIED)
    A = torch.cat([X, POINTS])
    K = model._covariance(A, A) + 1e-8 * torch.eye(len(A)).double()
    torch.manual_seed(0)
    f = model._mean(A) + torch.randn(400_000, len(A)).double() @ torch.linalg.cholesky(K).T
    weight = ndtr(torch.tensor([1.0, 1.0, -1.0, -1.0]) * f[:, :4]).prod(dim=-1)
    expected = (weight[:, None] * ndtr(f[:, 4:])).sum(dim=0) / weight.sum()
    assert_close(rate(model, POINTS), expected, atol=0.02, rtol=0.05)
    assert K.diagonal().max() == pytest.approx(VARIANCE)


def test_without_runs_it_is_the_prior():
    model = FeasibilityModel(X[:0], X[:0])
    assert_close(rate(model, POINTS), torch.full((5,), 0.75).double())


def test_never_quite_zero_or_one_and_finite_with_gradients():
    torch.manual_seed(1)
    X = torch.rand(80, 3, dtype=torch.double).repeat(2, 1)
    for succeeded in (X[:, 0] < 0.5, torch.rand(160) < 0.5, torch.ones(160) > 0, X[:, 0] > 1):
        model = FeasibilityModel(X[succeeded], X[~succeeded])
        where = X[:40].clone().requires_grad_()
        log_p = model.log_probability(where)
        log_p.sum().backward()
        assert log_p.isfinite().all()
        assert (log_p < 0).all()
        assert where.grad.isfinite().all()
    clear = FeasibilityModel(X[X[:, 0] < 0.5], X[X[:, 0] >= 0.5])
    right = rate(clear, X)
    assert (right[X[:, 0] < 0.4] > 0.7).all()
    assert (right[X[:, 0] > 0.6] < 0.3).all()


def test_old_runs_are_worth_a_few_runs():
    here = tensor([0.5, 0.5])
    many = torch.rand(3, 2).double() * 0.1, here.repeat(5_000, 1)
    old = FeasibilityModel(X[:0], X[:0], *many)
    assert len(old._old_X) == MAX_OLD
    assert 0.1 < rate(old, here).item() < 0.35  # (.75 · 1) / (4 + 1) = .15
    three = here + tensor([0.0, 0.0], [0.01, 0.0], [0.0, 0.01])
    own = FeasibilityModel(three, X[:0], *many)
    assert rate(own, here).item() > 0.7


def test_categories_and_bounds():
    bounds = tensor([0.0, 10.0], [4.0, 20.0])
    X = tensor([1.0, 15.0], [3.0, 12.0])
    model = FeasibilityModel(X[1:], X[:1], bounds=bounds, categorical=[0])
    near, far = rate(model, tensor([2.0, 15.0], [4.0, 15.0]))
    assert near.item() == pytest.approx(far.item())
    unit = (X - bounds[0]) / (bounds[1] - bounds[0])
    ordered = FeasibilityModel(X[1:], X[:1], bounds=bounds)
    assert_close(rate(ordered, X), rate(FeasibilityModel(unit[1:], unit[:1]), unit))


@pytest.mark.parametrize("place", range(4))
def test_unfit_inputs_are_refused(place):
    inputs = [torch.full((1, 2), torch.nan) if i == place else X[:1] for i in range(4)]
    with pytest.raises(InputDataError, match="An input is NaN or infinite"):
        FeasibilityModel(*inputs)


def test_the_logarithm_is_added_for_each_point():
    model = SingleTaskGP(X, X.sum(dim=-1, keepdim=True))
    feasibility = FeasibilityModel(*TRIED)
    for acquisition in (LogExpectedImprovement(model, 1.0), PosteriorMean(model)):
        value = FeasibleAcquisition(acquisition, feasibility)(POINTS.unsqueeze(-2))
        expected = acquisition(POINTS.unsqueeze(-2)) + feasibility.log_probability(POINTS)
        assert_close(value, expected)


def test_it_moves_as_a_module():
    model = FeasibilityModel(*TRIED, *TRIED)
    expected = model.log_probability(X)
    moved = model.float().log_probability(X.float())
    assert moved.dtype == torch.float32
    assert_close(moved.double(), expected, atol=1e-4, rtol=1e-4)
