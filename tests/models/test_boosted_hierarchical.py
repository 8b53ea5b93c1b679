from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_transfer.models import BoostedHierarchicalGP, MeanHierarchicalGP
from tests.hierarchy_twin import SIZES, boosted, climb, prior_of, target_of
from tests.kernels.tasks import draw_tasks, points


@pytest.mark.parametrize("sizes", SIZES)
def test_covariance_is_the_spread_over_source_draws(sizes: tuple[int, ...]) -> None:
    # Proposition 2: each draw of the source function is a certain prior mean of the target.
    levels, num = draw_tasks(sizes, 2), 40_000
    X, A = points(4, 2, seed=3), points(5, 2)
    model = BoostedHierarchicalGP(X, X[:, :1].sin(), prior_of(levels, "mean"))
    target, source = target_of(model), climb(boosted, levels)
    at_both = torch.cat([A, X])
    mean, covariance = source.at(at_both)
    draws = torch.distributions.MultivariateNormal(mean, covariance + 1e-10 * torch.eye(9))
    f, f_X = draws.sample((num,)).split([5, 4], dim=-1)
    gram = target.prior(X, X) + target.noise.diag()
    weights = torch.linalg.solve(gram, target.prior(X, A)).mT
    means = f + (target.Y - f_X) @ weights.mT
    expected = target.posterior_covariance(A, A) + means.mT.cov()
    posterior = model.posterior(A)
    deviation = posterior.variance.squeeze(-1).sqrt()
    error = (posterior.distribution.covariance_matrix - expected) / deviation.outer(deviation)
    # Four standard errors of a variance.
    assert error.abs().max() < 4 * (2 / num) ** 0.5
    error = (posterior.mean.squeeze(-1) - means.mean(dim=0)) / deviation
    assert error.abs().max() < 4 / num**0.5


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    num_points=st.integers(0, 5),
    seed=st.integers(0, 50),
)
def test_variance_is_at_least_the_mean_models(sizes: list[int], num_points: int, seed: int) -> None:
    prior = prior_of(draw_tasks(sizes, 2, seed=seed), "mean")
    X, A = points(num_points, 2, seed=seed + 1), points(20, 2, seed=seed + 2)
    data = (X, X[:, :1].sin(), prior)
    variance = BoostedHierarchicalGP(*data).posterior(A).variance
    assert bool((variance >= MeanHierarchicalGP(*data).posterior(A).variance - 1e-10).all())


def test_without_target_data_the_top_sources_covariance_is_added() -> None:
    levels, A = draw_tasks(SIZES[1], 2), points(5, 2)
    model = BoostedHierarchicalGP(points(0, 2), points(0, 1), prior_of(levels, "mean"))
    residual = model.residual_covar_module(A).to_dense()
    expected = climb(boosted, levels).covariance(A, A) + residual
    torch.testing.assert_close(model.posterior(A).distribution.covariance_matrix, expected)


def test_batches_of_targets_and_inputs() -> None:
    prior = prior_of(draw_tasks(SIZES[1], 2), "mean")
    X, A = points(3, 4, 2, seed=3), points(2, 3, 5, 2)
    covariance = BoostedHierarchicalGP(X, X[..., :1], prior).posterior(A).distribution
    for i, b in ((0, 0), (1, 2)):
        alone = BoostedHierarchicalGP(X[b], X[b, :, :1], prior).posterior(A[i, b]).distribution
        torch.testing.assert_close(covariance.covariance_matrix[i, b], alone.covariance_matrix)


def test_covariance_is_positive_semi_definite() -> None:
    prior, X = prior_of(draw_tasks(SIZES[2], 1), "mean"), points(4, 1, seed=3)
    grid = torch.linspace(-1, 2, 60, dtype=torch.double).unsqueeze(-1)
    covariance = BoostedHierarchicalGP(X, X, prior).posterior(grid).distribution.covariance_matrix
    assert torch.linalg.eigvalsh(covariance).min() > -1e-10
