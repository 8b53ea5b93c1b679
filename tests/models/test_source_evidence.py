from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from botorch_transfer import SourceGPs
from botorch_transfer.models import report
from botorch_transfer.models.report import slope_evidence
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_evidence_by_loops(n, known_noise):
    X, Y = FAMILY.target(n)
    noise = torch.full((n,), 2.0).double() if known_noise else None
    factors, slopes = slope_evidence(PRIOR.gps, X, Y.squeeze(-1), noise)
    scale = Y.std(correction=0) if n > 1 else torch.ones(()).double()
    y = (Y.squeeze(-1) - Y.mean()) / scale
    noises = [value * torch.ones(n) for value in report.NOISES]
    if known_noise:
        noises = [noise / scale**2 + report.NOISES[0]]
    distance = torch.cdist(X, X).square()
    for m in range(3):
        density = {}
        for slope in (*report.SLOPES, 0.0, *(-s for s in report.SLOPES)):
            mean = slope * PRIOR.mean(X)[m]
            values = []
            for ell, s, diagonal in product(report.LENGTHSCALES, report.SCALES, noises):
                K = 1 + s * torch.exp(-distance / (2 * ell**2)) + diagonal.double().diag()
                K = K + slope**2 * PRIOR.covariance(X)[m]
                joint = torch.distributions.MultivariateNormal(mean, K)
                values.append(float(joint.log_prob(y).exp()))
            density[slope] = sum(values) / len(values)
        positive = sum(density[s] for s in report.SLOPES) / 4
        negative = sum(density[-s] for s in report.SLOPES) / 4
        expected = [math.log(negative / density[0.0]), math.log(positive / density[0.0])]
        assert factors[m].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        total = positive + negative + density[0.0]
        mean_slope = sum(s * (density[s] - density[-s]) / 4 for s in report.SLOPES) / total
        assert float(slopes[m]) == pytest.approx(mean_slope, rel=1e-5, abs=1e-6)


def test_units_of_the_target_do_not_matter():
    X, Y = FAMILY.target(6)
    one, other = (slope_evidence(PRIOR.gps, X, y.squeeze(-1)) for y in (Y, 1e4 * Y - 3e6))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_opposite_has_the_opposite_evidence():
    X, Y = FAMILY.target(6)
    factors, slopes = slope_evidence(PRIOR.gps, X, Y.squeeze(-1))
    opposite, opposite_slopes = slope_evidence(PRIOR.gps, X, -Y.squeeze(-1))
    torch.testing.assert_close(factors, opposite.flip(-1))
    torch.testing.assert_close(slopes, -opposite_slopes)


def test_many_points_are_thinned(monkeypatch):
    X, Y = FAMILY.target(30)
    monkeypatch.setattr(report, "MAX_POINTS", 10)
    factors, _ = slope_evidence(PRIOR.gps, X, Y.squeeze(-1))
    rows = torch.linspace(0, 29, 10).round().long()
    torch.testing.assert_close(factors, slope_evidence(PRIOR.gps, X[rows], Y[rows].squeeze(-1))[0])


def test_constant_and_repeated_outcomes():
    X, Y = FAMILY.target(3)
    for inputs, outcomes in ((X, torch.ones(3).double()), (X[:1].repeat(3, 1), Y.squeeze(-1))):
        factors, slopes = slope_evidence(PRIOR.gps, inputs, outcomes)
        assert factors.isfinite().all()
        assert slopes.isfinite().all()
