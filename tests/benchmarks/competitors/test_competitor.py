"""What all competitors have in common."""

from __future__ import annotations

import pytest
import torch
from botorch.optim import optimize_acqf

from benchmarks.competitors import (
    Competitor,
    CopulaProcess,
    HandTunedGP,
    RandomFeatureGP,
    RobustMetaUCB,
    SharedSubnetworks,
)


class BriefNetworks(SharedSubnetworks):
    steps = ((1e-2, 400),)
    more_steps = (1e-3, 30)


class BriefFeatures(RandomFeatureGP):
    steps = ((5e-2, 50),)
    more_steps = (1e-2, 5)


COMPETITORS = [CopulaProcess, HandTunedGP, RobustMetaUCB, BriefNetworks, BriefFeatures]


@pytest.fixture(scope="module")
def built(history, bounds) -> dict[type[Competitor], Competitor]:
    return {
        CopulaProcess: CopulaProcess.build(history, bounds, 0, steps=150),
        HandTunedGP: HandTunedGP.build(history, bounds, 0),
        RobustMetaUCB: RobustMetaUCB.build(history, bounds, 0),
        BriefNetworks: BriefNetworks.build(history, bounds, 0),
        BriefFeatures: BriefFeatures.build(history, bounds, 0),
    }


def pool(bounds, n=300):
    generator = torch.Generator().manual_seed(1)
    return bounds[0] + 2 * torch.rand(n, 2, generator=generator, dtype=torch.double)


@pytest.mark.parametrize("competitor", COMPETITORS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_points(competitor, n, built, bounds, target):
    if n == 0 and competitor.needs_data:
        pytest.skip("it starts with random points")
    X, Y = (part[:n] for part in target)
    method, candidates = built[competitor], pool(bounds)
    chosen = method.suggest(X, Y, candidates)
    values = method.acquisition(X, Y)(candidates.unsqueeze(-2))
    assert values.shape == (300,)
    assert values.isfinite().all()
    assert chosen == int(values.argmax())
    assert method.suggest(X, Y, candidates) == chosen


@pytest.mark.parametrize("competitor", COMPETITORS)
def test_constant_outcomes_and_repeated_points(competitor, built, bounds, target):
    X, _ = target
    method = built[competitor]
    X = torch.cat([X, X])
    values = method.acquisition(X, torch.ones(10, 1, dtype=torch.double))(
        pool(bounds).unsqueeze(-2)
    )
    assert values.isfinite().all()


@pytest.mark.parametrize("competitor", COMPETITORS)
def test_large_pools_are_scored_in_parts(competitor, built, bounds, target, monkeypatch):
    method, candidates = built[competitor], pool(bounds)
    whole = method.suggest(*target, candidates)
    monkeypatch.setattr("benchmarks.competitors.competitor.AT_ONCE", 7)
    assert method.suggest(*target, candidates) == whole


@pytest.mark.parametrize("competitor", COMPETITORS)
def test_acquisitions_can_be_optimized(competitor, built, bounds, target):
    method = built[competitor]
    acquisition = method.acquisition(*target)
    candidate, value = optimize_acqf(
        acquisition, bounds, q=1, num_restarts=2, raw_samples=32, options={"seed": 0}
    )
    assert ((candidate >= bounds[0]) & (candidate <= bounds[1])).all()
    assert value >= acquisition(pool(bounds).unsqueeze(-2)).max() - 0.05 * value.abs()


@pytest.mark.parametrize("competitor", [CopulaProcess, RobustMetaUCB, BriefNetworks])
def test_the_first_point_is_near_the_histories_best(competitor, built, bounds):
    empty = torch.empty(0, 2, dtype=torch.double), torch.empty(0, 1, dtype=torch.double)
    candidates = pool(bounds)
    method = built[competitor]
    x = candidates[method.suggest(*empty, candidates)]
    assert (x - 0.2).norm() < 0.75  # at random, it is 1.1 away


@pytest.mark.parametrize("competitor", COMPETITORS)
def test_the_optimum_is_found(competitor, built, bounds, target):
    method, candidates = built[competitor], pool(bounds)
    X, Y = target
    for _ in range(6):
        x = candidates[method.suggest(X, Y, candidates)].unsqueeze(0)
        X = torch.cat([X, x])
        Y = torch.cat([Y, 100 - 10 * (x - 0.2).square().sum(dim=-1, keepdim=True)])
    best = 100 - 10 * (candidates - 0.2).square().sum(dim=-1).min()
    assert Y.max() > best - 0.5
