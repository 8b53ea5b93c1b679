from __future__ import annotations

import pytest
import torch

from botorch_transfer import SourceGPs, TwoStageTransferGP
from botorch_transfer.models.two_stage import epanechnikov
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)


@pytest.mark.parametrize("bandwidth", [0.1, 0.5])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_weights_by_direct_computation(n, bandwidth):
    X, Y = FAMILY.target(n)
    Y = Y + 4 * torch.sin(20 * X[:, :1])
    means = PRIOR.mean(X)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    weights = []
    for mean in means:
        discordant = sum(float((mean[i] < mean[j]) != (Y[i] < Y[j])) for i, j in pairs)
        t = discordant / len(pairs) / bandwidth
        weights.append(0.75 * (1 - t**2) if t <= 1 else 0.0)
    expected = torch.tensor([*weights, 0.75], dtype=torch.double)
    expected = expected / expected.sum()
    model = TwoStageTransferGP(X, Y, PRIOR, bandwidth=bandwidth)
    torch.testing.assert_close(model.weights, expected[:-1])
    torch.testing.assert_close(model.target_weight, expected[-1])


def test_pairs_of_equal_outcomes_do_not_count():
    X, Y = FAMILY.target(4)
    constant = TwoStageTransferGP(X, torch.ones_like(Y), PRIOR)
    assert constant.weights.tolist() == [0.25] * 3


def test_uncertainty_is_the_own_models():
    X, Y = FAMILY.target(5)
    shifted = TwoStageTransferGP(X, Y, PRIOR)
    inverted = TwoStageTransferGP(X, 100 - Y, PRIOR)
    A = FAMILY.inputs(4)
    scale = (shifted.outcome_transform.stdvs / inverted.outcome_transform.stdvs).square()
    expected = inverted.posterior(A).variance * scale
    torch.testing.assert_close(shifted.posterior(A).variance, expected)


def test_the_kernel():
    values = epanechnikov(torch.tensor([0.0, 0.5, 1.0, 3.0]))
    assert values.tolist() == [0.75, 0.5625, 0.0, 0.0]


def test_no_bandwidth_is_refused():
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        TwoStageTransferGP(*FAMILY.target(3), PRIOR, bandwidth=0.0)
