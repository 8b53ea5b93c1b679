from __future__ import annotations

import math

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator

from botorch_transfer.models.guarded import GuardRule, leave_one_out_evidence, prior_evidence


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.double)


def test_weight_of_evidence():
    rule = GuardRule(prior_weight=0.9, temperature=0.5)
    evidence = torch.tensor([-4.0, 0.0, 3.0], dtype=torch.double)
    odds = [9 * math.exp(0.5 * value) for value in evidence.tolist()]
    expected = torch.tensor([odd / (1 + odd) for odd in odds], dtype=torch.double)
    torch.testing.assert_close(rule.weight(evidence), expected)
    extreme = rule.weight(torch.tensor([-1e9, 1e9]))
    assert extreme.tolist() == [0.0, 1.0]


def test_leave_one_out_evidence_by_formulas():
    Y, noise = rand(2, 4), 0.1 + rand(2, 4, seed=1)
    left, right = ((rand(2, 4, seed=s), rand(2, 4, seed=s + 1)) for s in (2, 4))
    right = (right[0], right[1] - 0.99)  # rounding may make variances negative
    expected = torch.zeros(2, dtype=torch.double)
    for b in range(2):
        for i in range(4):
            for sign, (mean, variance) in ((1, left), (-1, right)):
                total = max(variance[b, i], 0.0) + noise[b, i]
                square = (Y[b, i] - mean[b, i]) ** 2 / total
                expected[b] += sign * (-0.5 * square - 0.5 * math.log(2 * math.pi * total))
    torch.testing.assert_close(leave_one_out_evidence(Y, left, right, noise), expected)


def test_prior_evidence_by_formulas():
    Y, noise = rand(3), 0.1 + rand(3, seed=1)
    priors = []
    for seed in (2, 3):
        half = rand(3, 3, seed=seed)
        priors.append(MultivariateNormal(rand(3, seed=seed + 5), half @ half.mT))
    densities = []
    for prior in priors:
        covariance = prior.covariance_matrix + torch.ones(3, 3) + noise.diag()
        joint = torch.distributions.MultivariateNormal(prior.mean, covariance)
        densities.append(joint.log_prob(Y))
    evidence = prior_evidence(Y, *priors, noise)
    torch.testing.assert_close(evidence, densities[0] - densities[1], rtol=1e-4, atol=1e-4)


def test_an_offset_of_the_target_is_no_evidence():
    mean, eye = torch.zeros(2).double(), torch.eye(2).double()
    sure, unsure = MultivariateNormal(mean, 0.01 * eye), MultivariateNormal(mean, eye)
    noise = torch.full((2,), 1e-4).double()
    same = prior_evidence(torch.tensor([2.0, 2.0]).double(), sure, unsure, noise)
    apart = prior_evidence(torch.tensor([2.0, -2.0]).double(), sure, unsure, noise)
    assert same > 0 > apart


def test_singular_priors():
    zero = to_linear_operator(torch.zeros(2, 2).double())
    prior = MultivariateNormal(torch.zeros(2).double(), zero)
    noise = torch.zeros(2).double()
    assert prior_evidence(torch.ones(2).double(), prior, prior, noise) == 0


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.1])
def test_odds_of_nothing_are_refused(weight):
    with pytest.raises(ValueError, match="prior_weight must be between 0 and 1"):
        GuardRule(prior_weight=weight)


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"blind_points": -1}])
def test_negative_settings_are_refused(options):
    with pytest.raises(ValueError, match="must not be negative"):
        GuardRule(**options)
