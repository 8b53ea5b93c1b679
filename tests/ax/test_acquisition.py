from __future__ import annotations

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import ModelListGP, SingleTaskGP
from torch.special import log_ndtr

from botorch_transfer import FullyBayesianHyperpriorGP, ScaMLGP
from botorch_transfer.ax.acquisition import PriorUpperConfidenceBound

X = torch.linspace(0, 1, 12, dtype=torch.double).unsqueeze(-1)
NONE = torch.empty(0, 1, dtype=torch.double)


def prior_model(sign: float = 1.0) -> ScaMLGP:
    return ScaMLGP(NONE, NONE, {"monday": (X, sign * (5 * X).sin())})


def test_one_objective_is_the_upper_confidence_bound():
    model = prior_model()
    test_X = torch.rand(7, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model, torch.ones(1, 1, dtype=torch.double), beta=4.0)
    torch.testing.assert_close(found(test_X), UpperConfidenceBound(model, beta=4.0)(test_X))
    lower = PriorUpperConfidenceBound(model, -torch.ones(1, 1, dtype=torch.double), beta=4.0)
    mirrored = UpperConfidenceBound(prior_model(-1.0), beta=4.0)
    torch.testing.assert_close(lower(test_X), mirrored(test_X), atol=1e-4, rtol=1e-4)


def test_pending_points_shrink_the_deviation_as_conditioning_does():
    model = prior_model()
    pending = torch.tensor([[0.2], [0.7]], dtype=torch.double)
    weights = torch.ones(1, 1, dtype=torch.double)
    with_pending = PriorUpperConfidenceBound(model, weights, X_pending=pending)
    without = PriorUpperConfidenceBound(model, weights)
    test_X = torch.tensor([[[0.2]], [[0.45]], [[0.7001]]], dtype=torch.double)
    posterior = model.posterior(test_X)
    found = (with_pending(test_X) - posterior.mean.view(-1)).square() / 9.0
    joint = model.posterior(torch.cat([pending, test_X.view(3, 1)])).distribution.covariance_matrix
    K, k = joint[:2, :2], joint[2:, :2]
    expected = joint.diagonal()[2:] - (k @ torch.linalg.solve(K, k.T)).diagonal()
    torch.testing.assert_close(found, expected.clamp_min(0), atol=1e-3, rtol=1e-2)
    assert (with_pending(test_X) < without(test_X)).all()


def test_several_objectives_and_constraints():
    models = [SingleTaskGP(X, Y).eval() for Y in (X, X.square(), (3 * X).cos())]
    model = ModelListGP(*models)
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]], dtype=torch.double)
    A, b = torch.tensor([[0.0, 0.0, 2.0]]).double(), torch.tensor([[0.5]]).double()
    test_X = torch.rand(5, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model, weights, (A, b))(test_X)
    mean = [m.posterior(test_X).mean.view(-1) for m in models]
    std = [m.posterior(test_X).variance.view(-1).sqrt() for m in models]
    bounds = (mean[0] + 3 * std[0] - mean[1] + 3 * std[1]) / 2
    expected = bounds + log_ndtr((0.5 - 2 * mean[2]) / (2 * std[2]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pending", [None, torch.tensor([[0.3]], dtype=torch.double)])
def test_it_has_gradients_and_is_finite(pending):
    weights = torch.ones(1, 1, dtype=torch.double)
    acquisition = PriorUpperConfidenceBound(prior_model(), weights, X_pending=pending)
    test_X = torch.tensor([[[0.3]], [[0.9]]], dtype=torch.double, requires_grad=True)
    acquisition(test_X).sum().backward()
    assert test_X.grad is not None
    assert test_X.grad.isfinite().all()


def test_units_do_not_matter_with_a_scale():
    def bound(unit: float) -> torch.Tensor:
        models = [SingleTaskGP(X, Y, outcome_transform=None).eval() for Y in (X, (3 * X).cos())]
        weights = torch.tensor([[unit, 0.0]], dtype=torch.double)
        A, b = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[0.5]]).double()
        return PriorUpperConfidenceBound(ModelListGP(*models), weights, (A, b), X_reference=X)(
            X.unsqueeze(-2)
        )

    torch.testing.assert_close(bound(1.0), bound(1e4))
    one = torch.ones(1, 1, dtype=torch.double)
    model = prior_model()
    found = PriorUpperConfidenceBound(model, one, X_reference=X).scale
    posterior = model.posterior(X.unsqueeze(-2))
    expected = posterior.mean.var(correction=0) + posterior.variance.mean()
    torch.testing.assert_close(found, expected.sqrt().view(1))


@pytest.mark.parametrize("pending", [None, torch.tensor([[0.3]], dtype=torch.double)])
def test_an_ensemble_counts_as_a_mixture(pending):
    model = FullyBayesianHyperpriorGP(NONE, NONE, {"monday": (X, (5 * X).sin())}, num_members=8)
    one = torch.ones(1, 1, dtype=torch.double)
    test_X = torch.rand(5, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model, one, X_pending=pending)(test_X)
    assert found.shape == (5,)
    posterior = model.posterior(test_X)
    variance = posterior.mixture_variance.view(-1)
    bound = posterior.mixture_mean.view(-1) + 3 * variance.sqrt()
    if pending is None:
        torch.testing.assert_close(found, bound)
    else:
        assert (found < bound).all()
