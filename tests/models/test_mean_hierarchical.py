from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.sampling import SobolQMCNormalSampler
from torch import Tensor

from botorch_transfer.models import BoostedHierarchicalGP, MeanHierarchicalGP
from tests.hierarchy_twin import SIZES, climb, means_only, prior_of, target_of
from tests.kernels.tasks import Task, draw_tasks, points


def _model(
    sizes: tuple[int, ...], num_points: int, weight: float | None
) -> tuple[MeanHierarchicalGP, list[Task]]:
    levels, X = draw_tasks(sizes, 2), points(num_points, 2, seed=3)
    prior = prior_of(levels, "mean")
    model = MeanHierarchicalGP(
        X, (3 * X).sin().sum(-1, keepdim=True), prior, deviation_weight=weight
    )
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


@pytest.mark.parametrize("weight", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("num_points", [0, 1, 5])
@pytest.mark.parametrize("sizes", SIZES)
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


def test_without_target_data_the_sources_deviation_is_kept() -> None:
    model, levels = _model((6,), 0, 1.0)
    A = points(4, 2)
    expected = levels[0].posterior_covariance(A, A).diagonal()
    torch.testing.assert_close(model.posterior(A).variance.squeeze(-1), expected)


def test_large_weight_is_the_residuals_deviation() -> None:
    combined, plain = (
        _model(SIZES[1], 5, weight)[0].posterior(points(4, 2)) for weight in (1e9, None)
    )
    torch.testing.assert_close(combined.variance, plain.variance, rtol=1e-6, atol=0)


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


def test_fantasies() -> None:
    model, _ = _model(SIZES[1], 3, 1.0)
    X, A = points(4, 1, 2, seed=7), points(5, 2)
    fantasies = model.fantasize(X, SobolQMCNormalSampler(torch.Size([3]), seed=0))
    posterior = fantasies.posterior(A)
    assert posterior.mean.shape == (3, 4, 5, 1)
    conditioned = model.condition_on_observations(X[1], fantasies.train_targets[2, 1, -1:, None])
    torch.testing.assert_close(posterior.variance[2, 1], conditioned.posterior(A).variance)
    torch.testing.assert_close(posterior.mean[2, 1], conditioned.posterior(A).mean)


def test_copies_keep_the_weight() -> None:
    model, _ = _model(SIZES[1], 3, 2.0)
    A = points(4, 2)
    variance = model.posterior(A).variance
    for twin in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin.posterior(A).variance, variance, rtol=0, atol=0)


def test_mean_is_the_boosted_models() -> None:
    model, levels = _model(SIZES[2], 4, None)
    boosted = BoostedHierarchicalGP(
        *model.train_inputs, model.train_targets.unsqueeze(-1), prior_of(levels, "mean")
    )
    A = points(6, 2)
    torch.testing.assert_close(
        model.posterior(A).mean, boosted.posterior(A).mean, rtol=0, atol=1e-12
    )
    assert bool((model.posterior(A).variance < boosted.posterior(A).variance).all())


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_weight_must_be_positive(weight: float) -> None:
    with pytest.raises(ValueError, match=f"deviation_weight must be positive, not {weight}"):
        _model(SIZES[0], 2, weight)
