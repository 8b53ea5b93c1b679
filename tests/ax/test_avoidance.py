from __future__ import annotations

import pytest
import torch
from botorch.acquisition import PosteriorMean, qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler

from botorch_transfer.ax.acquisition import AvoidingAcquisition, failure_radii

X = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
BOUNDS = torch.tensor([[0.0, -1.0], [2.0, 1.0]], dtype=torch.double)


def model() -> SingleTaskGP:
    return SingleTaskGP(X, X.sum(-1, keepdim=True)).eval()


def test_it_is_what_the_formula_says():
    mean, avoid = PosteriorMean(model()), X[:3]
    radii = torch.tensor([0.3, 0.01, 0.1], dtype=torch.double)
    found = AvoidingAcquisition(mean, BOUNDS, avoid, radii, floor=-2.0)(X.unsqueeze(-2))
    for x, value, usual in zip(X, found, mean(X.unsqueeze(-2)), strict=True):
        factor = 1.0
        for a, radius in zip(avoid, radii, strict=True):
            near = min(1.0, float(((x - a) / 2).square().sum() / radius**2))
            factor *= near * (2 - near)
        assert value.item() == pytest.approx(-2 + (usual.item() + 2) * factor)
    torch.testing.assert_close(found[:3], torch.full((3,), -2.0, dtype=torch.double))


def test_another_category_is_not_near():
    mean, radii = PosteriorMean(model()), torch.tensor([0.3], dtype=torch.double)
    avoid = torch.tensor([[0.5, 0.0]], dtype=torch.double)
    test_X = torch.tensor([[[0.5, 0.1]], [[0.5, 0.0]]], dtype=torch.double)
    found = AvoidingAcquisition(mean, BOUNDS, avoid, radii, categorical=[1], floor=-2.0)(test_X)
    torch.testing.assert_close(found[0], mean(test_X)[0])
    assert float(found[1]) == -2.0


def test_one_hot_inputs_are_rounded():
    """Points between categories are what they will become."""
    Z = torch.rand(8, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    mean = PosteriorMean(SingleTaskGP(Z, Z.sum(-1, keepdim=True)).eval())
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, 4)
    avoid, radii = torch.tensor([[0.5, 0.0, 1.0, 0.0]]).double(), torch.tensor([0.9]).double()
    blocks = [[1, 2, 3]]
    avoiding = AvoidingAcquisition(mean, bounds, avoid, radii, floor=-2.0, one_hot_blocks=blocks)
    test_X = torch.tensor([[[0.5, 0.2, 0.8, 0.1]], [[0.5, 0.0, 0.3, 0.2]]], dtype=torch.double)
    torch.testing.assert_close(avoiding(test_X), torch.full((2,), -2.0, dtype=torch.double))
    between = torch.tensor([[[0.5, 0.81, 0.8, 0.1]]], dtype=torch.double)
    other = torch.tensor([[[0.5, 1.0, 0.0, 0.0]]], dtype=torch.double)
    torch.testing.assert_close(avoiding(between), mean(other))
    test_X = torch.tensor([[[0.6, 0.2, 0.8, 0.1]]], dtype=torch.double, requires_grad=True)
    avoiding(test_X).sum().backward()
    assert test_X.grad is not None
    assert test_X.grad[0, 0, 0] > 0
    assert not test_X.grad[0, 0, 1:].any()
    wider = AvoidingAcquisition(mean, bounds, avoid, radii + 0.2, one_hot_blocks=blocks)
    assert 0 < float(wider(other) / mean(other)) < 1  # categories are one width apart


def test_what_does_not_matter_is_near_whatever_it_is():
    mean, radii = PosteriorMean(model()), torch.tensor([0.3], dtype=torch.double)
    avoid = torch.tensor([[0.5, torch.nan]], dtype=torch.double)
    avoiding = AvoidingAcquisition(mean, BOUNDS, avoid, radii, floor=-2.0)
    test_X = torch.tensor([[[0.5, -1.0]], [[0.5, 1.0]], [[1.5, 1.0]]], dtype=torch.double)
    torch.testing.assert_close(avoiding(test_X)[:2], torch.full((2,), -2.0, dtype=torch.double))
    torch.testing.assert_close(avoiding(test_X)[2], mean(test_X)[2])
    test_X = torch.tensor([[[0.6, 0.3]]], dtype=torch.double, requires_grad=True)
    avoiding(test_X).sum().backward()
    assert test_X.grad is not None
    assert test_X.grad.isfinite().all()
    points = torch.cat([avoid, torch.tensor([[0.5, 0.3], [1.5, torch.nan]])])
    assert failure_radii(points, BOUNDS, 0.01).tolist() == pytest.approx([0.02, 0.02, 0.01])


def test_pending_points_are_avoided_and_told_to_the_acquisition():
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    usual = qUpperConfidenceBound(model(), 4.0, sampler)
    none = X[:0]
    avoiding = AvoidingAcquisition(usual, BOUNDS, none, none[:, 0], pending_radius=0.1, floor=-99.0)
    torch.testing.assert_close(avoiding(X.unsqueeze(-2)), usual(X.unsqueeze(-2)))
    avoiding.set_X_pending(X[4:6])
    assert usual.X_pending is not None
    assert float(avoiding(X[5:6].unsqueeze(-2))) == -99.0
    test_X = (X[5:6] + 0.02).unsqueeze(-2).requires_grad_()
    avoiding(test_X).sum().backward()
    assert test_X.grad is not None
    assert test_X.grad.isfinite().all()
    assert bool((test_X.grad > 0).any())
    avoiding.set_X_pending(None)
    assert usual.X_pending is None


def test_failures_that_gather_are_avoided_from_further_away():
    points = torch.cat([torch.full((20, 2), 0.5), torch.tensor([[1.9, 0.9]])]).double()
    radii = failure_radii(points, BOUNDS, 0.01)
    torch.testing.assert_close(radii[:20], torch.full((20,), 0.1, dtype=torch.double))
    assert float(radii[20]) == pytest.approx(0.01)
    assert failure_radii(points[:0], BOUNDS, 0.01).shape == (0,)
