from __future__ import annotations

import torch

from botorch_transfer import GuardedTransferGP
from botorch_transfer.gp.paths import MeanPath, ScaledPath, centred_posterior_paths, kernel_paths
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(4, seed=5)


def build(n=4):
    return GuardedTransferGP(*FAMILY.target(n), FAMILY.sources()).eval()


@torch.no_grad()
def test_means_with_and_without_data():
    model = build()
    torch.testing.assert_close(MeanPath(model)(TEST_X), model(TEST_X).mean)
    prior = MeanPath(model.transfer, prior=True)(TEST_X)
    torch.testing.assert_close(prior, model.transfer.mean_module(TEST_X))


@torch.no_grad()
def test_factors_are_one_a_draw():
    mean = MeanPath(build())
    factor = torch.tensor([1.0, -2.0], dtype=torch.double)
    draws = ScaledPath(mean, factor)(TEST_X)
    torch.testing.assert_close(draws, factor.unsqueeze(-1) * mean(TEST_X))


@torch.no_grad()
def test_centred_paths_have_the_plain_gps_covariance():
    model = build().plain
    torch.manual_seed(0)
    prior = kernel_paths(
        model, model.covar_module, sample_shape=torch.Size([2000]), num_features=2048
    )
    draws = centred_posterior_paths(model, prior)(TEST_X)
    expected = model(TEST_X).covariance_matrix
    scale = expected.diagonal().sqrt()
    assert (draws.mean(0) / scale).abs().max() < 0.1
    error = (torch.cov(draws.mT) - expected) / (scale.unsqueeze(-1) * scale)
    assert error.abs().max() < 0.15
