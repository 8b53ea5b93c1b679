from typing import Any

import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer import BoostedHierarchicalGP, MeanHierarchicalGP, SequentialHierarchicalGP
from botorch_transfer.hierarchy.models import HierarchicalGP
from botorch_transfer.hierarchy.prior import SourceHierarchy
from tests.gp.padded import Task, draw_tasks, points
from tests.hierarchy.twin import (
    SIZES,
    Process,
    Step,
    boosted,
    climb,
    draw_model,
    means_only,
    moments_and_gradient,
    predict,
    prior_of,
    sequential,
    target_of,
)

MODELS: list[tuple[type[HierarchicalGP], Step]] = [
    (SequentialHierarchicalGP, sequential),
    (MeanHierarchicalGP, means_only),
    (BoostedHierarchicalGP, boosted),
]


def _twin(step: Step, model: HierarchicalGP, levels: list[Task], **changed: Tensor) -> Process:
    return climb(step, [*levels, target_of(model, **changed)])


@pytest.mark.parametrize(
    ("num_points", "sizes", "known_noise"),
    [
        (0, SIZES[2], False),
        (1, SIZES[0], False),
        (2, SIZES[1], False),
        (4, SIZES[1], True),
        (6, SIZES[2], False),
    ],
)
@pytest.mark.parametrize(("model_class", "step"), MODELS)
def test_posterior(
    model_class: type[HierarchicalGP],
    step: Step,
    sizes: tuple[int, ...],
    num_points: int,
    known_noise: bool,
) -> None:
    noise = 0.1 * points(num_points, 1, seed=5) if known_noise else None
    model, levels = draw_model(model_class, sizes, num_points, noise)
    changed = {"noise": noise.squeeze(-1)} if known_noise else {}
    A = points(5, 2)
    mine = moments_and_gradient(predict(model), A)
    theirs = moments_and_gradient(_twin(step, model, levels, **changed).at, A)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


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
    named = model.named_priors()
    log_prior = sum(prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in named)
    value = mll(model(*model.train_inputs), model.train_targets) * 6 - log_prior
    torch.testing.assert_close(value, expected.log_prob(target.Y))


def test_other_propagation_is_refused() -> None:
    levels, X = draw_tasks([4], 2), points(3, 2)
    with pytest.raises(ValueError, match=r"needs propagate='covariance'"):
        SequentialHierarchicalGP(X, X[:, :1], prior_of(levels, "mean"))
    for model_class in (MeanHierarchicalGP, BoostedHierarchicalGP):
        with pytest.raises(ValueError, match="SourceHierarchy has 'covariance': fit a hierarchy"):
            model_class(X, X[:, :1], prior_of(levels, "covariance"))


def _model(
    sizes: tuple[int, ...], num_points: int, weight: float | None
) -> tuple[MeanHierarchicalGP, list[Task]]:
    levels, X = draw_tasks(sizes, 2), points(num_points, 2, seed=3)
    prior = prior_of(levels, "mean")
    model = MeanHierarchicalGP(X, (3 * X).sin().sum(-1, True), prior, deviation_weight=weight)
    return model.eval(), levels


def _own_deviations(levels: list[Task], x: Tensor) -> list[float]:
    """Each level's residual deviation at a ``1 x d`` input, by its own plain GP."""
    return [float(level.posterior_covariance(x, x).squeeze()) ** 0.5 for level in levels]


def _combined(levels: list[Task], x: Tensor, weight: float) -> float:
    """Golovin's deviation, as published: level by level, point by point."""
    deviations, sizes = _own_deviations(levels, x), [len(level.X) for level in levels]
    combined = deviations[0]
    for n in range(1, len(levels)):
        beta = weight * sizes[n] / (weight * sizes[n] + sizes[n - 1])
        combined = deviations[n] ** beta * combined ** (1 - beta)
    return combined


@pytest.mark.parametrize(
    ("weight", "num_points", "sizes"),
    [(0.5, 0, SIZES[2]), (1.0, 1, SIZES[0]), (4.0, 5, SIZES[1]), (0.5, 5, SIZES[2])],
)
def test_combined_deviation(sizes: tuple[int, ...], num_points: int, weight: float) -> None:
    model, levels = _model(sizes, num_points, weight)
    levels, A = [*levels, target_of(model)], points(4, 2)
    expected = torch.tensor([_combined(levels, x.unsqueeze(0), weight) for x in A]).double()
    posterior = model.posterior(A)
    torch.testing.assert_close(posterior.variance.squeeze(-1).sqrt(), expected)
    torch.testing.assert_close(posterior.mean.squeeze(-1), climb(means_only, levels).mean(A))
    # The correlation is the residual's.
    own = levels[-1].posterior_covariance(A, A)
    correlation = own / own.diagonal().outer(own.diagonal()).sqrt()
    covariance = posterior.distribution.covariance_matrix
    torch.testing.assert_close(covariance, correlation * expected.outer(expected))


@pytest.mark.parametrize("num_points", [0, 4])
@pytest.mark.parametrize("weight", [None, 1.0])
def test_gradient(num_points: int, weight: float | None) -> None:
    model, _ = _model(SIZES[1], num_points, weight)
    A = points(3, 2).requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda x: (model.posterior(x).mean, model.posterior(x).distribution.covariance_matrix), A
    )


def test_gradient_at_a_point_almost_without_noise() -> None:
    levels, X = draw_tasks(SIZES[1], 2), points(4, 2, seed=3)
    noise = torch.full((4, 1), 1e-6, dtype=torch.double)
    model = MeanHierarchicalGP(X, X[:, :1], prior_of(levels, "mean"), noise, deviation_weight=1.0)
    A = X[:2].clone().requires_grad_(True)
    model.posterior(A).variance.sum().backward()
    assert bool(A.grad.isfinite().all())


@pytest.mark.parametrize("num_points", [0, 3])
def test_conditioning_counts_the_new_points(num_points: int) -> None:
    model, levels = _model(SIZES[1], num_points, 1.0)
    X, Y = points(2, 2, seed=7), points(2, 1, seed=8)
    model.posterior(points(1, 2))  # conditioning needs caches
    conditioned = model.condition_on_observations(X, Y)
    rebuilt = MeanHierarchicalGP(
        torch.cat([points(num_points, 2, seed=3), X]),
        torch.cat([model.train_targets.unsqueeze(-1), Y]),
        prior_of(levels, "mean"),
        deviation_weight=1.0,
    )
    A = points(4, 2)
    torch.testing.assert_close(conditioned.posterior(A).mean, rebuilt.posterior(A).mean)
    torch.testing.assert_close(conditioned.posterior(A).variance, rebuilt.posterior(A).variance)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_weight_must_be_positive(weight: float) -> None:
    with pytest.raises(ValueError, match=f"deviation_weight={weight} must be positive"):
        _model(SIZES[0], 2, weight)


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


@pytest.mark.parametrize(
    ("observation_noise", "known_noise", "num_points"),
    [(True, False, 1), (False, True, 2), (True, True, 5), (False, False, 5)],
)
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
