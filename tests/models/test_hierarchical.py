from __future__ import annotations

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.models import (
    BoostedHierarchicalGP,
    MeanHierarchicalGP,
    SequentialHierarchicalGP,
)
from botorch_transfer.models.hierarchical import HierarchicalGP
from botorch_transfer.pretraining import SourceGPs
from botorch_transfer.pretraining.source_gps.hierarchy import SourceHierarchy
from tests.families import ShiftedSines
from tests.hierarchy_twin import (
    SIZES,
    Process,
    Step,
    boosted,
    climb,
    draw_model,
    levels_of,
    means_only,
    moments_and_gradient,
    prior_of,
    sequential,
    target_of,
)
from tests.kernels.tasks import Task, draw_tasks, points

MODELS: list[tuple[type[HierarchicalGP], Step]] = [
    (SequentialHierarchicalGP, sequential),
    (MeanHierarchicalGP, means_only),
    (BoostedHierarchicalGP, boosted),
]


def _twin(step: Step, model: HierarchicalGP, levels: list[Task], **changed: Tensor) -> Process:
    return climb(step, [*levels, target_of(model, **changed)])


@pytest.mark.parametrize("num_points", [0, 1, 2, 6])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_posterior(
    model_class: type[HierarchicalGP], step: Step, sizes: tuple[int, ...], num_points: int
) -> None:
    model, levels = draw_model(model_class, sizes, num_points)

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        posterior = model.posterior(x)
        return posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix

    A = points(5, 2)
    mine = moments_and_gradient(moments, A)
    theirs = moments_and_gradient(_twin(step, model, levels).at, A)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_known_noise(model_class: type[HierarchicalGP], step: Step) -> None:
    noise = points(4, 1, seed=5) * 0.1
    model, levels = draw_model(model_class, SIZES[1], 4, noise)
    A = points(5, 2)
    posterior = model.posterior(A)
    mean, covariance = _twin(step, model, levels, noise=noise.squeeze(-1)).at(A)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance)


@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_users_units(model_class: type[HierarchicalGP], step: Step) -> None:
    family, A = ShiftedSines(), points(5, 2)
    prior = SourceHierarchy.fit(family.sources(), model_class.propagate, num_restarts=0)
    model = model_class(*family.target(4), prior)
    mean, covariance = _twin(step, model, levels_of(prior)).at(A)
    posterior, transform = model.posterior(A), model.outcome_transform
    outcomes = torch.cat([Y for _, Y in (*family.sources().values(), family.target(4))])
    torch.testing.assert_close(transform.stdvs.squeeze(), outcomes.std())
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean * outcomes.std() + outcomes.mean())
    torch.testing.assert_close(
        posterior.distribution.covariance_matrix, covariance * outcomes.var()
    )


def test_models_agree_where_sources_are_certain() -> None:
    x = torch.linspace(0, 1, 40, dtype=torch.double).unsqueeze(-1)
    source = Task(
        X=x,
        Y=(6 * x).sin().squeeze(-1),
        noise=torch.full((40,), 1e-7, dtype=torch.double),
        lengthscale=torch.tensor([0.3], dtype=torch.double),
        outputscale=torch.ones((), dtype=torch.double),
        mean=torch.zeros((), dtype=torch.double),
        kernel="rbf",
    )
    X = x[[3, 20, 33]]
    posteriors = [
        model_class(X, (4 * X).cos(), prior_of([source], model_class.propagate)).posterior(x)
        for model_class, _ in MODELS
    ]
    for posterior in posteriors[1:]:
        close = {"rtol": 0.0, "atol": 1e-5}
        torch.testing.assert_close(posterior.mean, posteriors[0].mean, **close)
        covariances = [p.distribution.covariance_matrix for p in (posterior, posteriors[0])]
        torch.testing.assert_close(*covariances, **close)


@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_likelihood_of_the_fit(model_class: type[HierarchicalGP], step: Step) -> None:
    model, levels = draw_model(model_class, SIZES[1], 6)
    target = target_of(model)
    below = climb(sequential if model_class is SequentialHierarchicalGP else boosted, levels)
    gram = target.prior(target.X, target.X) + target.noise.diag()
    if model_class is SequentialHierarchicalGP:
        gram = gram + below.covariance(target.X, target.X)
    expected = torch.distributions.MultivariateNormal(below.mean(target.X), gram)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    log_prior = sum(
        prior.log_prob(closure(module)).sum()
        for _, module, prior, closure, _ in model.named_priors()
    )
    value = mll(model(*model.train_inputs), model.train_targets) * 6 - log_prior
    torch.testing.assert_close(value, expected.log_prob(target.Y))


@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_twin_after_fitting(model_class: type[HierarchicalGP], step: Step) -> None:
    model, levels = draw_model(model_class, SIZES[1], 6)
    before = model.residual_covar_module.outputscale.clone()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    assert not torch.equal(model.residual_covar_module.outputscale, before)
    A = points(5, 2)
    posterior = model.posterior(A)
    mean, covariance = _twin(step, model, levels).at(A)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance)


@pytest.mark.parametrize("num_points", [0, 4])
@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_paths(model_class: type[HierarchicalGP], step: Step, num_points: int) -> None:
    model, _ = draw_model(model_class, SIZES[2], num_points)
    A, num = points(5, 2), 2048
    draws = draw_matheron_paths(model, torch.Size([num]))(A)
    posterior = model.posterior(A)
    mean, covariance = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    deviation = covariance.diagonal().sqrt()
    error = (draws.mean(dim=0) - mean) / deviation * num**0.5
    assert error.abs().max() < 4.5
    error = (draws.mT.cov() - covariance) / (deviation * deviation.unsqueeze(-1))
    # 4.5 standard errors of a variance, 0.14, and what random features are off.
    assert error.abs().max() < 0.17


def test_other_propagation_is_refused() -> None:
    levels, X = draw_tasks([4], 2), points(3, 2)
    with pytest.raises(ValueError, match=r"needs a SourceHierarchy with propagate='covariance'"):
        SequentialHierarchicalGP(X, X[:, :1], prior_of(levels, "mean"))
    for model_class in (MeanHierarchicalGP, BoostedHierarchicalGP):
        with pytest.raises(ValueError, match=r"this one has 'covariance': fit it with propagate="):
            model_class(X, X[:, :1], prior_of(levels, "covariance"))


@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_other_priors_are_refused(model_class: type[HierarchicalGP], step: Step) -> None:
    family = ShiftedSines()
    prior = SourceGPs.fit(family.sources(), num_restarts=0)
    with pytest.raises(TypeError, match=r"Expected a SourceHierarchy or source data"):
        model_class(*family.target(2), prior)


@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_source_data_are_fitted_once(model_class: type[HierarchicalGP], step: Step) -> None:
    family = ShiftedSines()
    first = model_class(*family.target(2), family.sources((4, 3)))
    second = model_class(*family.target(3), family.sources((4, 3)))
    assert first.prior is not second.prior
    assert first.prior.gps.alpha is second.prior.gps.alpha
    assert first.prior.propagate == model_class.propagate
