from __future__ import annotations

import torch
from gpytorch.distributions import MultivariateNormal

from botorch_transfer.models.guarded import mixed


def _normal(seed: int) -> MultivariateNormal:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(2, 3, 3, generator=generator, dtype=torch.double)
    mean = torch.randn(2, 3, generator=generator, dtype=torch.double)
    return MultivariateNormal(mean, half @ half.mT)


def test_moments_by_drawing_from_the_mixture():
    left, right = _normal(0), _normal(1)
    weight = torch.tensor([0.3, 0.9], dtype=torch.double)
    joint = mixed(left, right, weight)
    num = 400_000
    side = torch.rand(num, 2, 1, dtype=torch.double) < weight.unsqueeze(-1)
    draws = torch.where(side, left.rsample(torch.Size([num])), right.rsample(torch.Size([num])))
    torch.testing.assert_close(draws.mean(0), joint.mean, atol=0.03, rtol=0)
    for b in range(2):
        covariance = torch.cov(draws[:, b].mT)
        torch.testing.assert_close(covariance, joint.covariance_matrix[b], atol=0.1, rtol=0)
