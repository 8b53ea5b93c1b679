"""Known variances of single points that are added to the learned noise."""

from typing import Any

import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer import models
from botorch_transfer.gp.noise import AddedNoiseLikelihood
from botorch_transfer.gp.objective import TargetObjective
from botorch_transfer.models import GuardedTransferGP, PopulationGP, ScaMLGP, TransferGP
from tests.fits import fit_model as fit
from tests.gp.gpytorchs import gpytorchs
from tests.gp.padded import points
from tests.gp.tasks import draw_data

SOURCES: Any = draw_data([8, 9, 7])
X, NEW = points(6, 2), points(3, 2)
Y = 3 * X.sum(-1, keepdim=True).sin()
ADDED = torch.tensor([0.0, 0.4, 0.0, 0.1, 2.0, 0.0], dtype=torch.double)


def build(kind: str = "ScaMLGP", added: Tensor = ADDED) -> Any:
    return getattr(models, kind)(X, Y, SOURCES, likelihood=AddedNoiseLikelihood(added))


def dense(model: Any, X_new: Tensor, rows: Any = slice(None)) -> tuple[Tensor, Tensor]:
    """The twin: mean and variance of the exact GP, in the user's units."""
    scale = getattr(model, "outcome_transform", None)
    stdv = 1.0 if scale is None else scale.stdvs.squeeze()
    noise = model.likelihood.noise + ADDED / stdv**2
    (train_X,), targets = model.eval().train_inputs, model.train_targets
    both = torch.cat([train_X[rows], X_new])
    n = len(train_X[rows])
    K, m = model.covar_module(both).to_dense(), model.mean_module(both)
    solved = torch.linalg.solve(K[:n, :n] + noise[rows].diag(), K[:n, n:])
    mean = m[n:] + solved.mT @ (targets[rows] - m[:n])
    variance = (K[n:, n:] - K[n:, :n] @ solved).diagonal()
    shift = 0.0 if scale is None else scale.means.squeeze()
    return mean * stdv + shift, variance * stdv**2


@pytest.mark.parametrize("kind", ["ScaMLGP", "PopulationGP", "SequentialHierarchicalGP"])
def test_predictions_and_leave_one_out_are_those_of_the_dense_twin(kind: str) -> None:
    model = fit(build(kind))
    # as many new points as training points: their noise is the learned one all the same
    X_new = points(6, 2)
    posterior = model.posterior(X_new)
    mean, variance = dense(model, X_new)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.variance.squeeze(-1), variance)
    noisy = model.posterior(X_new, observation_noise=True).variance.squeeze(-1) - variance
    stdv = model.outcome_transform.stdvs.squeeze()
    torch.testing.assert_close(noisy, (model.likelihood.noise * stdv**2).expand(6))
    left_out = model.loo_posterior(observation_noise=False)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        mean, variance = dense(model, X[[i]], others)
        torch.testing.assert_close(left_out.mean[i].squeeze(), mean.squeeze())
        torch.testing.assert_close(left_out.variance[i].squeeze(), variance.squeeze())


@pytest.mark.parametrize("kind", ["ScaMLGP", "LinearCoregionalizationGP"])
def test_closed_form_is_the_objective_of_gpytorch(kind: str) -> None:
    model = build(kind)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    objective: Any = getattr(model, "closed_form", TargetObjective.of)(mll)
    assert objective is not None
    found = objective(objective.read(mll), torch.zeros(1, dtype=torch.long))
    expected = gpytorchs(mll, objective.params(model))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model_class", [ScaMLGP, PopulationGP, TransferGP, GuardedTransferGP])
def test_conditioning_equals_a_rebuilt_model(model_class: Any) -> None:
    model = fit(build(model_class.__name__))
    model.posterior(X)
    new_Y = 3 * NEW.sum(-1, keepdim=True).sin()
    conditioned = model.condition_on_observations(model.transform_inputs(NEW), new_Y)
    members = list(model.members.values()) if hasattr(model, "members") else [model]
    after = list(conditioned.members.values()) if hasattr(model, "members") else [conditioned]
    for before, member in zip(members, after, strict=True):
        added = member.likelihood.added
        torch.testing.assert_close(added[:6], before.likelihood.added)
        assert not added[6:].any()
    assert conditioned.posterior(X).variance.isfinite().all()


def test_zero_variances_change_nothing() -> None:
    plain, added = ScaMLGP(X, Y, SOURCES), build(added=torch.zeros_like(ADDED))
    torch.testing.assert_close(
        fit(added).posterior(NEW).mean, fit(plain).posterior(NEW).mean, rtol=1e-6, atol=1e-8
    )


def test_a_very_uncertain_point_counts_for_nothing() -> None:
    outlier = Y.clone()
    outlier[4] = 100.0
    certain = torch.full_like(ADDED, 0.0)
    certain[4] = 1e8
    for kind in ("ScaMLGP", "TransferGP"):
        model_class = getattr(models, kind)
        model = fit(model_class(X, outlier, SOURCES, likelihood=AddedNoiseLikelihood(certain)))
        assert model.posterior(NEW).mean.abs().max() < 50


def test_fantasies_of_fantasies_have_the_learned_noise() -> None:
    model = build().eval()
    x, y, at = points(3, 1, 2, seed=4), points(4, 3, 1, seed=5), points(2, 2, seed=6)
    together = model.get_fantasy_model(x, y)
    together = together.get_fantasy_model(x.expand(4, 3, 1, 2) / 2, points(5, 4, 3, 1, seed=7))(at)
    single = model.get_fantasy_model(x[2], y[1, 2])
    single = single.get_fantasy_model(x[2] / 2, points(5, 4, 3, 1, seed=7)[3, 1, 2])(at)
    torch.testing.assert_close(together.mean[3, 1, 2], single.mean)
    torch.testing.assert_close(together.covariance_matrix[3, 1, 2], single.covariance_matrix)


def test_likelihood_by_itself() -> None:
    likelihood = AddedNoiseLikelihood(ADDED)
    likelihood.transform(None, Y)
    assert torch.equal(likelihood.get_fantasy_likelihood().added, ADDED)
    # At other points there is the learned noise alone.
    noise = likelihood.noise_covar(shape=torch.Size([3])).diagonal()
    torch.testing.assert_close(noise, likelihood.noise.expand(3))
