"""NLL and EKL against direct evaluations in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from botorch_transfer.kernels.gaussian import nll
from botorch_transfer.pretraining.pretrained.objectives import EmpiricalGaussian, ekl


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def covariances(*shape, seed=1):
    root = draw(*shape, shape[-1], seed=seed)
    return root @ root.mT + 0.3 * torch.eye(shape[-1], dtype=torch.double)


def naive_nll(mean, covariance, Y):
    return -multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(Y.numpy())


def naive_ekl(mean, covariance, Y, rank):
    """On an orthonormal basis of the support, where everything is an ordinary Gaussian."""
    Y, mean, covariance = Y.numpy(), mean.numpy(), covariance.numpy()
    empirical_mean = Y.mean(axis=1)
    empirical = np.cov(Y, bias=True).reshape(len(Y), len(Y))
    values, vectors = np.linalg.eigh(empirical)
    A = vectors[:, -rank:] * np.sqrt(values[-rank:])
    pinv = np.linalg.pinv(A)
    S, m = pinv @ covariance @ pinv.T, pinv @ (mean - empirical_mean)
    inverse = np.linalg.inv(S)
    return 0.5 * (np.trace(inverse) + m @ inverse @ m + np.log(np.linalg.det(S)) - rank)


def test_nll_is_the_density():
    mean, covariance, Y = draw(3, 5), covariances(3, 5), draw(3, 5, seed=2)
    expected = [naive_nll(*parts) for parts in zip(mean, covariance, Y, strict=True)]
    np.testing.assert_allclose(nll(mean, covariance, Y), expected, rtol=1e-10)


def test_nll_of_ragged_tasks():
    mean, covariance, Y = draw(3, 5), covariances(3, 5), draw(3, 5, seed=2)
    sizes = torch.tensor([5, 1, 3])
    mask = torch.arange(5) < sizes.unsqueeze(-1)
    expected = [
        naive_nll(m[:n], K[:n, :n], y[:n])
        for m, K, y, n in zip(mean, covariance, Y, sizes.tolist(), strict=True)
    ]
    np.testing.assert_allclose(nll(mean, covariance, Y, mask), expected, rtol=1e-10)
    padded = Y.masked_fill(~mask, 1e3)
    assert torch.equal(nll(mean, covariance, padded, mask), nll(mean, covariance, Y, mask))


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_nll(masked):
    root, mean, Y = draw(2, 4, 4), draw(2, 4), draw(2, 4, seed=2)
    mask = torch.tensor([[True] * 4, [True, True, False, False]]) if masked else None

    def value(root, mean, Y):
        return nll(mean, root @ root.mT + torch.eye(4, dtype=torch.double), Y, mask)

    inputs = [tensor.requires_grad_() for tensor in (root, mean, Y)]
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("shape", [(1,), (2, 1), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_noise_of_its_own(shape, masked):
    mean, covariance, Y = draw(2, 4), covariances(2, 4), draw(2, 4, seed=2)
    noise = (0.1 + draw(*shape, seed=5).square()).requires_grad_()
    mask = torch.tensor([[True] * 4, [True, True, False, False]]) if masked else None
    before = covariance.clone()
    expected = nll(mean, covariance + torch.diag_embed(noise.expand(2, 4)), Y, mask)
    torch.testing.assert_close(nll(mean, covariance, Y, mask, noise), expected)
    assert torch.equal(covariance, before)
    assert torch.autograd.gradcheck(lambda noise: nll(mean, covariance, Y, mask, noise), noise)


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_nll_of_a_broken_task_is_nan_and_the_others_are_not():
    covariance = torch.stack([torch.eye(3), -torch.eye(3), torch.eye(3)]).double()
    values = nll(torch.zeros(3, 3).double(), covariance, torch.zeros(3, 3).double())
    assert values.isnan().tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_singular_covariance_gets_jitter():
    covariance = torch.ones(1, 3, 3, dtype=torch.double)
    value = nll(torch.zeros(1, 3).double(), covariance, torch.ones(1, 3).double())
    assert value.isfinite().all()


@pytest.mark.parametrize(("P", "N"), [(4, 9), (1, 2), (3, 4)])
def test_ekl_of_full_rank_is_the_divergence(P, N):
    Y, mean, covariance = draw(P, N), draw(P, seed=3), covariances(P)
    value = ekl(mean[None], covariance[None], EmpiricalGaussian.of([Y]))
    ours = torch.distributions.MultivariateNormal(mean, covariance)
    sample = torch.distributions.MultivariateNormal(
        Y.mean(-1), torch.cov(Y, correction=0).reshape(P, P)
    )
    expected = torch.distributions.kl_divergence(sample, ours)
    torch.testing.assert_close(value[0], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(value, [naive_ekl(mean, covariance, Y, P)], rtol=1e-8)


@pytest.mark.parametrize(("P", "N", "rank"), [(6, 3, 2), (5, 5, 4), (7, 2, 1)])
def test_ekl_of_few_tasks_is_on_their_support(P, N, rank):
    Y, mean, covariance = draw(P, N), draw(P, seed=3), covariances(P)
    empirical = EmpiricalGaussian.of([Y])
    assert empirical.rank.tolist() == [rank]
    value = ekl(mean[None], covariance[None], empirical)
    np.testing.assert_allclose(value, [naive_ekl(mean, covariance, Y, rank)], rtol=1e-8)


def test_ekl_of_tasks_that_are_copies():
    """Rank is what differs, not the number of tasks."""
    Y, mean, covariance = draw(6, 3), draw(6, seed=3), covariances(6)
    doubled = EmpiricalGaussian.of([Y.repeat(1, 2)])
    assert doubled.rank.tolist() == [2]
    value = ekl(mean[None], covariance[None], doubled)
    torch.testing.assert_close(value, ekl(mean[None], covariance[None], EmpiricalGaussian.of([Y])))


def test_ekl_of_several_groups_of_different_sizes():
    sizes = [(6, 3, 2), (2, 8, 2), (4, 5, 4), (1, 2, 1)]
    outcomes = [draw(P, N, seed=P) for P, N, _ in sizes]
    empirical = EmpiricalGaussian.of(outcomes)
    assert empirical.rank.tolist() == [rank for _, _, rank in sizes]
    mean, covariance = draw(4, 6, seed=9), covariances(4, 6)
    expected = [
        naive_ekl(m[:P], K[:P, :P], Y, rank)
        for m, K, Y, (P, _, rank) in zip(mean, covariance, outcomes, sizes, strict=True)
    ]
    np.testing.assert_allclose(ekl(mean, covariance, empirical), expected, rtol=1e-8)


def test_gradient_of_ekl():
    empirical = EmpiricalGaussian.of([draw(4, 3), draw(2, 6)])
    root, mean = draw(2, 4, 4, seed=4).requires_grad_(), draw(2, 4, seed=5).requires_grad_()

    def value(root, mean):
        return ekl(mean, root @ root.mT + torch.eye(4, dtype=torch.double), empirical)

    assert torch.autograd.gradcheck(value, (root, mean))


def test_ekl_is_least_at_the_empirical_gaussian():
    Y = draw(3, 12)
    empirical = EmpiricalGaussian.of([Y])
    mean, covariance = Y.mean(-1)[None], torch.cov(Y, correction=0)[None]
    assert ekl(mean, covariance, empirical).abs() < 1e-10
    assert ekl(mean + 0.1, covariance, empirical) > 1e-4
    assert ekl(mean, 1.1 * covariance, empirical) > 1e-4


def test_ekl_and_nll_differ_by_a_constant_where_tasks_are_many():
    """Sec. 5.5.1: their gradients are the same if the empirical covariance has full rank."""
    Y = draw(3, 12)
    differences = []
    for seed in (1, 2):
        mean, covariance = draw(3, seed=seed), covariances(3, seed=seed)
        divergence = ekl(mean[None], covariance[None], EmpiricalGaussian.of([Y]))
        likelihood = nll(mean.expand(12, 3), covariance.expand(12, 3, 3), Y.mT).mean()
        differences.append(divergence - likelihood)
    torch.testing.assert_close(*differences)


@pytest.mark.parametrize("level", [0.0, 1e6])
def test_equal_tasks_are_refused(level):
    same = (draw(4, 1) + level).expand(4, 3)
    with pytest.raises(ValueError, match="equal outcomes"):
        EmpiricalGaussian.of([draw(4, 3), same])


def test_single_precision():
    Y, mean, covariance = draw(5, 3), draw(5, seed=3), covariances(5)
    empirical = EmpiricalGaussian.of([Y.float()])
    assert empirical.rank.tolist() == [2]
    value = ekl(mean[None].float(), covariance[None].float(), empirical)
    assert value.dtype == torch.float
    expected = naive_ekl(mean, covariance, Y, 2)
    np.testing.assert_allclose(value, [expected], rtol=1e-3)
