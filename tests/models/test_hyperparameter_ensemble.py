"""What an ensemble of GPs can do: the contract of BoTorch's ensembles."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
    qLogNoisyExpectedImprovement,
)
from botorch.cross_validation import loo_cv
from botorch.sampling.normal import SobolQMCNormalSampler

from tests.models.members import TEST_X, build, data, member


@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_shapes(n, batch_shape):
    model = build(n)
    X = torch.rand(*batch_shape, 4, 2, dtype=torch.double)
    posterior = model.posterior(X)
    assert posterior.mean.shape == (*batch_shape, 8, 4, 1)
    assert posterior.mixture_mean.shape == (*batch_shape, 4, 1)
    assert posterior.rsample(torch.Size([5])).shape == (5, *batch_shape, 8, 4, 1)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [0, 5])
def test_observation_noise(n, known_noise):
    _, Y = data(n)
    model = build(n, train_Yvar=torch.full_like(Y, 0.3) if known_noise else None)
    latent, noisy = (model.posterior(TEST_X, observation_noise=flag) for flag in (False, True))
    added = (noisy.variance - latent.variance).squeeze(-1)
    expected = model.likelihood.noise.mean(dim=-1, keepdim=True).expand(8, 4)
    torch.testing.assert_close(added, expected)
    given = torch.full((4, 1), 0.7, dtype=torch.double)
    added = model.posterior(TEST_X, observation_noise=given).variance - latent.variance
    torch.testing.assert_close(added, given.expand(8, 4, 1))


@pytest.mark.parametrize("n", [0, 4])
def test_acquisitions_average_over_members(n):
    model = build(n)
    X, (_, Y) = TEST_X.unsqueeze(-2), data(4)
    posterior = model.posterior(X)
    mean, std = posterior.mean.squeeze(-1).squeeze(-1), posterior.variance.sqrt().squeeze()
    normal = torch.distributions.Normal(0.0, 1.0)
    improvement = ProbabilityOfImprovement(model, Y.max())(X)
    expected = normal.cdf((mean - Y.max()) / std).mean(dim=-1)
    torch.testing.assert_close(improvement, expected, rtol=1e-4, atol=1e-6)
    bound = UpperConfidenceBound(model, beta=9.0)(X)
    torch.testing.assert_close(bound, (mean + 3 * std).mean(dim=-1))
    assert LogExpectedImprovement(model, Y.max())(X).isfinite().all()


def test_noisy_improvement():
    X, _ = data(5)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qLogNoisyExpectedImprovement(build(5), X, sampler)
    value = acquisition(TEST_X.unsqueeze(-2))
    assert value.shape == (4,)
    assert value.isfinite().all()


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_conditioning_equals_a_rebuilt_member(n, known_noise, batch_shape):
    X, Y = data(n)
    model = build(n, train_Yvar=torch.full_like(Y, 0.2) if known_noise else None)
    new_X = torch.rand(*batch_shape, 2, 2, dtype=torch.double)
    new_Y = new_X.sum(dim=-1, keepdim=True)
    noise = torch.full_like(new_Y, 0.3) if known_noise else None
    model.posterior(TEST_X)
    conditioned = model.condition_on_observations(new_X, new_Y, noise=noise)
    assert conditioned.num_target_points == n + 2
    posterior = conditioned.posterior(TEST_X.expand(*batch_shape, 4, 2))
    for batch in range(3) if batch_shape else [()]:
        all_X, all_Y = (torch.cat([old, new[batch]]) for old, new in ((X, new_X), (Y, new_Y)))
        Yvar = None
        if noise is not None:
            Yvar = torch.cat([torch.full_like(Y, 0.2), noise[batch]])
        for index in (0, 7):
            expected = member(model, index, all_X, all_Y, Yvar).posterior(TEST_X)
            torch.testing.assert_close(
                posterior.mean[batch][index], expected.mean, rtol=1e-5, atol=1e-7
            )
            torch.testing.assert_close(
                posterior.variance[batch][index], expected.variance, rtol=1e-4, atol=1e-7
            )


@pytest.mark.parametrize("of_members", [False, True])
def test_points_may_be_each_members_own(of_members):
    X, Y = data(4)
    model = build(4)
    new_X = torch.rand(*([8] if of_members else []), 2, 2, dtype=torch.double)
    new_Y = torch.rand(8, 2, 1, dtype=torch.double)
    model.posterior(TEST_X)
    posterior = model.condition_on_observations(new_X, new_Y).posterior(TEST_X)
    for index in (0, 7):
        its_X = new_X[index] if of_members else new_X
        single = member(model, index, torch.cat([X, its_X]), torch.cat([Y, new_Y[index]]))
        expected = single.posterior(TEST_X)
        torch.testing.assert_close(posterior.mean[index], expected.mean, rtol=1e-5, atol=1e-7)


def test_outcomes_of_batches_may_be_each_members_own():
    model = build(4)
    X = torch.rand(3, 2, 2, dtype=torch.double)
    Y = torch.rand(3, 8, 2, 1, dtype=torch.double)
    model.posterior(TEST_X)
    posterior = model.condition_on_observations(X, Y).posterior(TEST_X)
    assert posterior.mean.shape == (3, 8, 4, 1)
    for batch in range(3):
        alone = model.condition_on_observations(X[batch], Y[batch]).posterior(TEST_X)
        torch.testing.assert_close(posterior.mean[batch], alone.mean)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [0, 4])
def test_fantasies(n, known_noise):
    _, Y = data(n)
    model = build(n, train_Yvar=torch.full_like(Y, 0.2) if known_noise else None)
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
    fantasies = model.fantasize(TEST_X[:2], sampler)
    posterior = fantasies.posterior(TEST_X)
    assert posterior.mean.shape == (3, 8, 4, 1)
    assert (posterior.variance[..., :2, :] < model.posterior(TEST_X[:2]).variance).all()


@pytest.mark.parametrize("known_noise", [False, True])
def test_leave_one_out(known_noise):
    X, Y = data(5)
    Yvar = torch.full_like(Y, 0.2) if known_noise else None
    model = build(5, train_Yvar=Yvar)
    predictions = loo_cv(model).posterior
    assert predictions.mean.shape == (5, 8, 1, 1)
    for left_out in range(5):
        rows = torch.arange(5) != left_out
        noise = None if Yvar is None else Yvar[rows]
        single = member(model, 3, X[rows], Y[rows], noise)
        expected = single.posterior(X[left_out : left_out + 1])
        added = model.likelihood.noise[3].mean()
        torch.testing.assert_close(
            predictions.mean[left_out, 3], expected.mean, rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(
            predictions.variance[left_out, 3], expected.variance + added, rtol=1e-4, atol=1e-6
        )


def test_noise_of_as_many_points_as_members():
    """Its dimensions tell whose it is, whatever their sizes."""
    model = build(4)
    members = model.batch_shape[0]
    X = TEST_X[:3].expand(members, 3, -1)
    noise = torch.arange(1.0, members + 1).double().reshape(-1, 1, 1).expand(members, 3, 1)
    latent = model.posterior(X).variance
    added = model.posterior(X, observation_noise=noise).variance - latent
    expected = noise.unsqueeze(-3).expand_as(added)
    torch.testing.assert_close(added, expected)
    own = noise.unsqueeze(0).expand(members, members, 3, 1)  # each member's own
    added = model.posterior(X, observation_noise=own).variance - latent
    torch.testing.assert_close(added, own)
