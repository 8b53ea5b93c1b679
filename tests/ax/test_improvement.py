from __future__ import annotations

import pytest
import torch
from botorch.acquisition import LogNoisyExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP, SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler

from botorch_transfer import FullyBayesianHyperpriorGP, ScaMLGP
from botorch_transfer.ax.acquisition import NoiselessFantasies, noisy_improvement

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(6, 2, dtype=torch.double, generator=GENERATOR)
TEST_X = torch.rand(9, 1, 2, dtype=torch.double, generator=GENERATOR)
Y = (3 * X).sin().sum(-1, keepdim=True)
ONE = torch.ones(1, 1, dtype=torch.double)


def noisy_model() -> SingleTaskGP:
    return SingleTaskGP(X, Y, torch.full_like(Y, 0.05), outcome_transform=None).eval()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_is_what_samples_estimate(sign):
    model = noisy_model()
    found = noisy_improvement(model, sign * ONE, X)
    assert found is not None
    sampler = SobolQMCNormalSampler(torch.Size([4096]), seed=0)
    transform = ScalarizedPosteriorTransform(sign * ONE[0])
    sampled = qLogNoisyExpectedImprovement(model, X, sampler, posterior_transform=transform)
    # Far below the best, samples say little.
    torch.testing.assert_close(found(TEST_X).exp(), sampled(TEST_X).exp(), atol=5e-3, rtol=0.1)


def test_fantasies_are_what_a_model_conditioned_on_them_says():
    model, base = noisy_model(), X[:3]
    transform = ScalarizedPosteriorTransform(ONE[0])
    fantasies = NoiselessFantasies(model, base, transform, num_fantasies=4)
    found = fantasies.posterior(TEST_X)
    for i, outcomes in enumerate(fantasies.outcomes):
        noise = torch.full_like(outcomes, 1e-6).unsqueeze(-1)
        known = model.condition_on_observations(base, outcomes.unsqueeze(-1), noise=noise)
        expected = known.posterior(TEST_X)
        torch.testing.assert_close(found.mean[:, i], expected.mean, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(found.variance[:, i], expected.variance, atol=1e-3, rtol=1e-3)


def test_it_agrees_with_botorchs_of_a_single_task():
    model = noisy_model()
    found = noisy_improvement(model, ONE, X)
    torch.manual_seed(0)
    expected = LogNoisyExpectedImprovement(model, X, num_fantasies=256)
    assert found is not None
    torch.testing.assert_close(found(TEST_X).exp(), expected(TEST_X).exp(), atol=2e-2, rtol=0.2)


def test_a_sum_of_outcomes_and_gradients():
    model = ModelListGP(noisy_model(), noisy_model())
    double = noisy_improvement(model, torch.ones(1, 2, dtype=torch.double), X)
    assert double is not None
    test_X = torch.cat([TEST_X, X[:1].unsqueeze(0)]).requires_grad_()
    double(test_X).sum().backward()
    assert test_X.grad is not None
    assert test_X.grad.isfinite().all()


def test_nothing_is_to_be_gained_where_the_outcome_is_known():
    model = ScaMLGP(X, Y, {"monday": (X, Y)}, train_Yvar=torch.full_like(Y, 1e-8))
    found = noisy_improvement(model, ONE, X)
    assert found is not None
    assert found(X.unsqueeze(-2)).max() < -6.0


def test_ensembles_are_sampled_instead():
    model = FullyBayesianHyperpriorGP(X, Y, {"monday": (X, Y)}, num_members=4)
    assert noisy_improvement(model, ONE, X) is None
