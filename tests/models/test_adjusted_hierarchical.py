from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_transfer.models import BoostedHierarchicalGP, MeanHierarchicalGP
from botorch_transfer.models.hierarchical import HierarchicalGP
from botorch_transfer.pretraining.source_gps.hierarchy import SourceHierarchy
from tests.families import ShiftedSines
from tests.hierarchy_twin import SIZES, prior_of
from tests.kernels.tasks import draw_tasks, points
from tests.models.contract import copy_hyperparameters

KINDS: list[tuple[type[HierarchicalGP], dict[str, Any]]] = [
    (BoostedHierarchicalGP, {}),
    (MeanHierarchicalGP, {}),
    (MeanHierarchicalGP, {"deviation_weight": 1.0}),
]


def _build(
    kind: tuple[type[HierarchicalGP], dict[str, Any]],
    X: Tensor,
    Y: Tensor,
    prior: SourceHierarchy,
    noise: Tensor | None = None,
) -> HierarchicalGP:
    model = kind[0](X, Y, prior, noise, **kind[1])
    model.residual_covar_module.initialize(outputscale=0.4)
    return model.eval()


@pytest.mark.parametrize("observation_noise", [True, False])
@pytest.mark.parametrize("known_noise", [True, False])
@pytest.mark.parametrize("num_points", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_leave_one_out_by_refits(
    kind: tuple[type[HierarchicalGP], dict[str, Any]],
    num_points: int,
    known_noise: bool,
    observation_noise: bool,
) -> None:
    prior, X = prior_of(draw_tasks(SIZES[1], 2), "mean"), points(num_points, 2, seed=3)
    Y, noise = (3 * X).sin().sum(-1, keepdim=True), 0.01 + 0.1 * points(num_points, 1, seed=4)
    model = _build(kind, X, Y, prior, noise if known_noise else None)
    loo = model.loo_posterior(observation_noise=observation_noise)
    assert loo.mean.shape == loo.variance.shape == (num_points, 1, 1)
    for i in range(num_points):
        keep = torch.arange(num_points) != i
        refit = _build(kind, X[keep], Y[keep], prior, noise[keep] if known_noise else None)
        posterior = refit.posterior(X[i : i + 1])
        variance = posterior.variance
        if observation_noise:
            variance = variance + (noise[i] if known_noise else model.likelihood.noise)
        torch.testing.assert_close(loo.mean[i], posterior.mean)
        torch.testing.assert_close(loo.variance[i], variance)


@pytest.mark.parametrize("kind", KINDS)
def test_leave_one_out_in_users_units(
    kind: tuple[type[HierarchicalGP], dict[str, Any]],
) -> None:
    family = ShiftedSines()
    X, Y = family.target(4)
    prior = SourceHierarchy.fit(family.sources(), "mean", num_restarts=0)
    model = kind[0](X, Y, prior, **kind[1]).eval()
    transform, loo = model.outcome_transform, model.loo_posterior()
    for i in range(4):
        keep = torch.arange(4) != i
        refit = kind[0](X[keep], transform(Y[keep])[0], prior, outcome_transform=None, **kind[1])
        copy_hyperparameters(model, refit)
        posterior = refit.posterior(X[i : i + 1], observation_noise=True)
        mean = transform.untransform(posterior.mean)[0]
        torch.testing.assert_close(loo.mean[i], mean)
        torch.testing.assert_close(loo.variance[i], posterior.variance * transform.stdvs[0] ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_leave_one_out_in_batches(
    kind: tuple[type[HierarchicalGP], dict[str, Any]],
) -> None:
    prior, X = prior_of(draw_tasks(SIZES[1], 2), "mean"), points(3, 4, 2, seed=3)
    Y = (3 * X).sin().sum(-1, keepdim=True)
    loo = _build(kind, X, Y, prior).loo_posterior()
    assert loo.mean.shape == (3, 4, 1, 1)
    for b in range(3):
        alone = _build(kind, X[b], Y[b], prior).loo_posterior()
        torch.testing.assert_close(loo.mean[b], alone.mean)
        torch.testing.assert_close(loo.variance[b], alone.variance)


def test_boosted_leave_one_out_identity() -> None:
    levels, X = draw_tasks(SIZES[1], 2), points(6, 2, seed=3)
    prior, Y = prior_of(levels, "mean"), X[:, :1].sin()
    boosted, plain = (_build(kind, X, Y, prior) for kind in KINDS[:2])
    kernel = boosted.residual_covar_module(X).to_dense()
    inverse = torch.linalg.inv(kernel + boosted.likelihood.noise * torch.eye(6))
    R = inverse / inverse.diagonal().unsqueeze(-1)
    expected = (R @ prior.gps.covariance(X)[0] @ R.mT).diagonal()
    difference = boosted.loo_posterior().variance - plain.loo_posterior().variance
    torch.testing.assert_close(difference.flatten(), expected)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]])
def test_calling_the_model_gives_the_corrected_covariance(
    kind: tuple[type[HierarchicalGP], dict[str, Any]],
) -> None:
    prior, X = prior_of(draw_tasks(SIZES[1], 2), "mean"), points(4, 2, seed=3)
    model, A = _build(kind, X, X[:, :1], prior), points(5, 2)
    called, covariance = model(A), model.posterior(A).distribution.covariance_matrix
    torch.testing.assert_close(called.covariance_matrix, covariance)
    plain = _build(KINDS[1], X, X[:, :1], prior)
    assert (plain(A).covariance_matrix - covariance).abs().max() > 1e-3
    # The likelihood, and so the fit, is that of the exact GP.
    mine, theirs = model.train()(X), plain.train()(X)
    torch.testing.assert_close(mine.covariance_matrix, theirs.covariance_matrix)
