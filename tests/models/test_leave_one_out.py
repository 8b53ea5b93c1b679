from __future__ import annotations

import pytest
import torch

from botorch_transfer import (
    BoostedHierarchicalGP,
    GuardedTransferGP,
    RankWeightedGP,
    ScaMLGP,
    TwoStageTransferGP,
)
from botorch_transfer.models.target import (
    exact_leave_one_out,
    latent_leave_one_out,
    leave_one_out_posterior,
    observation_noise_variance,
)
from tests.families import ShiftedSines
from tests.models.contract import copy_hyperparameters

FAMILY = ShiftedSines()


@pytest.mark.parametrize("model_class", [ScaMLGP, BoostedHierarchicalGP])
def test_latent_predictions_by_refits(model_class):
    X, Y = FAMILY.target(5)
    model = model_class(X, Y, FAMILY.sources())
    mean, variance = latent_leave_one_out(model)
    for i in range(5):
        keep = torch.arange(5) != i
        y = model.train_targets[keep].unsqueeze(-1)
        twin = model_class(X[keep], y, FAMILY.sources(), outcome_transform=None)
        copy_hyperparameters(model, twin)
        posterior = twin.posterior(X[[i]])
        torch.testing.assert_close(mean[i], posterior.mean[0, 0])
        torch.testing.assert_close(variance[i], posterior.variance[0, 0], rtol=1e-4, atol=1e-8)
    assert hasattr(model, "outcome_transform")


def test_the_exact_gps_predictions_on_request():
    model = BoostedHierarchicalGP(*FAMILY.target(5), FAMILY.sources())
    exact, own = (latent_leave_one_out(model, exact=exact) for exact in (True, False))
    torch.testing.assert_close(exact, exact_leave_one_out(model))
    torch.testing.assert_close(exact[0], own[0])
    assert (own[1] >= exact[1]).all()
    assert (own[1] > exact[1]).any()


def test_posterior_is_in_the_users_units():
    X, Y = FAMILY.target(3)
    model = ScaMLGP(X, Y, FAMILY.sources(), torch.full_like(Y, 4.0)).eval()
    mean, variance = model.train_targets, observation_noise_variance(model, X)
    posterior = leave_one_out_posterior(model, mean, variance)
    assert posterior.mean.shape == (3, 1, 1)
    torch.testing.assert_close(posterior.mean[:, 0], Y)
    torch.testing.assert_close(posterior.variance, torch.full((3, 1, 1), 4.0).double())


CLASSES = [RankWeightedGP, TwoStageTransferGP, GuardedTransferGP, BoostedHierarchicalGP]


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("model_class", CLASSES)
def test_members_of_a_batch_are_predicted_as_if_alone(model_class, n):
    """Also where there are as many points as members."""
    X = FAMILY.inputs(3, n, seed=3)
    Y = FAMILY.value(X) * torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    together = model_class(X, Y, FAMILY.sources()).loo_posterior()
    assert together.mean.shape == (3, n, 1, 1)
    for member in range(3):
        alone = model_class(X[member], Y[member], FAMILY.sources()).loo_posterior()
        torch.testing.assert_close(together.mean[member], alone.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(together.variance[member], alone.variance, rtol=1e-4, atol=0)
