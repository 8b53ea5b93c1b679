"""Estimates of domains, draws, and the distributions that are fitted to estimates."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from botorch_transfer.hyperprior.fit import BROAD_SHAPE, MAX_SHAPE, fit_gamma, fit_normal


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e6])
@pytest.mark.parametrize(("shape", "n"), [(0.3, 5), (1.0, 40), (10.0, 7), (200.0, 500)])
def test_gamma_equals_scipys(shape, n, scale):
    sample = stats.gamma.rvs(shape, scale=scale, size=n, random_state=n)
    a, _, b = stats.gamma.fit(sample / scale, floc=0)
    found = fit_gamma(torch.from_numpy(sample))
    assert_close(found, torch.tensor([a, 1 / (b * scale)], dtype=torch.double), rtol=1e-6, atol=0)


@pytest.mark.parametrize("values", [[0.4], [0.4, 0.4], [0.4, 0.4 * (1 + 1e-9), 0.4]])
def test_degenerate_estimates_give_a_broad_gamma(values, caplog):
    with caplog.at_level(logging.WARNING):
        shape, rate = fit_gamma(torch.tensor(values, dtype=torch.double), "noise")
    assert shape == BROAD_SHAPE
    assert_close(shape / rate, torch.tensor(0.4, dtype=torch.double))
    assert f"The {len(values)} estimate(s) of the noise are almost equal" in caplog.text


def test_the_guard_begins_at_its_largest_shape():
    narrow = torch.from_numpy(stats.gamma.ppf([0.25, 0.5, 0.75], 4 * MAX_SHAPE))
    broader = torch.from_numpy(stats.gamma.ppf([0.05, 0.5, 0.95], 0.4 * MAX_SHAPE))
    assert fit_gamma(narrow)[0] == BROAD_SHAPE
    assert 0.2 * MAX_SHAPE < fit_gamma(broader)[0] < 1.5 * MAX_SHAPE


@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=6))
def test_any_estimates_give_a_gamma(values):
    shape, rate = fit_gamma(torch.tensor(values, dtype=torch.double))
    assert 0 < shape < 10 * MAX_SHAPE
    assert torch.isfinite(rate)
    assert rate > 0


def test_normal_is_the_maximum_likelihood_one():
    sample = torch.tensor([1.0, 2.0, 6.0], dtype=torch.double)
    mean, std = fit_normal(sample, broad=1.0)
    expected = stats.norm.fit(sample.numpy())
    assert_close(torch.stack([mean, std]), torch.tensor(expected).double())


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0]])
def test_degenerate_estimates_give_a_broad_normal(values, caplog):
    with caplog.at_level(logging.WARNING):
        found = fit_normal(torch.tensor(values), broad=0.5, name="mean")
    assert found.tolist() == [3.0, 0.5]
    assert "of the mean are almost equal" in caplog.text
