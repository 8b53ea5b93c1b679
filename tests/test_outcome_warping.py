from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.outcome_transforms import compress_failures, negative_log_error


def test_negative_log_error():
    error = torch.tensor([[0.0], [1e-3], [0.5], [2.0]], dtype=torch.double)
    expected = -np.log(error.numpy() + 1e-10)
    np.testing.assert_allclose(negative_log_error(error), expected, rtol=1e-14)
    with pytest.raises(InputDataError, match="1 - accuracy"):
        negative_log_error(-error)


def naive(values):
    finite = [y for y in values if math.isfinite(y)]
    median, best = np.median(finite), max(finite)
    soft = [np.logaddexp(0.0, y - median) for y in finite]
    return [4 * s / np.logaddexp(0.0, best - median) - 2 for s in soft]


@pytest.mark.parametrize("values", [[-0.7, -0.5, -3.0], [1.0], [2.0, 2.0], [-1e3, 5.0, 4.0, 0.1]])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_finite_outcomes(values, dtype):
    warped = compress_failures(torch.tensor(values, dtype=dtype).unsqueeze(-1))
    assert warped.dtype == dtype
    np.testing.assert_allclose(warped.squeeze(-1), naive(values), rtol=1e-5)
    assert warped.max() == 2


def test_failures_are_worst_and_change_nothing_else():
    values = [-0.7, -0.5, -1e18]
    warped = compress_failures(
        torch.tensor([*values, math.nan, -math.inf, math.inf]).double()[:, None]
    )
    np.testing.assert_allclose(warped[:3, 0], naive(values))
    assert warped[3:].tolist() == [[-2.0]] * 3
    assert (warped >= -2).all()
    assert warped.isfinite().all()


def test_nothing_but_failures():
    Y = torch.full((3, 1), math.nan, dtype=torch.double)
    assert compress_failures(Y).tolist() == [[-2.0]] * 3
    assert compress_failures(Y[:0]).shape == (0, 1)


def test_order_is_kept():
    Y = torch.randn(50, 1, dtype=torch.double)
    assert torch.equal(Y.argsort(dim=0), compress_failures(Y).argsort(dim=0))
