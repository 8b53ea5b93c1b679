from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS
from botorch_transfer.hyperpriors.spec import (
    UnseenNoiseLikelihood,
    default_likelihood,
    residual_likelihood,
)


@pytest.mark.parametrize("batch_shape", [torch.Size(), torch.Size([2])])
def test_noise_is_inferred_within_its_bounds(batch_shape: torch.Size) -> None:
    noise = RESIDUAL_HYPERPARAMETERS.noise
    likelihood = default_likelihood(batch_shape, None)
    assert isinstance(likelihood, GaussianLikelihood)
    assert likelihood.noise.shape == (*batch_shape, 1)
    torch.testing.assert_close(likelihood.noise, torch.full((*batch_shape, 1), noise.start))
    constraint = likelihood.noise_covar.raw_noise_constraint
    assert float(constraint.lower_bound) == pytest.approx(noise.lower)
    assert float(constraint.upper_bound) == pytest.approx(noise.upper)


def test_without_a_hyperprior() -> None:
    free = SOURCE_HYPERPARAMETERS.without_priors().noise
    assert not list(residual_likelihood(torch.Size(), free).named_priors())
    assert len(list(residual_likelihood(torch.Size()).named_priors())) == 1


def test_known_noise_is_left_to_botorch_where_there_is_any() -> None:
    assert default_likelihood(torch.Size(), torch.ones(3, 1)) is None


def test_known_noise_before_there_is_any() -> None:
    likelihood = default_likelihood(torch.Size([2]), torch.ones(2, 0, 1))
    assert isinstance(likelihood, UnseenNoiseLikelihood)
    expected = torch.full((2, 1), RESIDUAL_HYPERPARAMETERS.noise.start)
    torch.testing.assert_close(likelihood.noise, expected)
    # From the first observation on it is that of the points.
    seen = likelihood.get_fantasy_likelihood(noise=torch.full((2, 1), 0.3))
    torch.testing.assert_close(seen.noise, torch.full((2, 1), 0.3))
