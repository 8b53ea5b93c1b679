"""The constructors by preset."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean

from botorch_transfer.pretraining import PretrainedPrior
from tests.pretraining.pretrained import PRESETS, TEST_X, fit


@pytest.fixture(params=PRESETS)
def preset(request):
    return PRESETS[request.param]()


def test_a_prior_has_nothing_to_fit(preset):
    for prior in (preset, fit(preset)):
        assert list(prior.parameters()) == []
        assert not any("prior" in name for name, _ in prior.parts.named_modules())
        assert not prior.mean(TEST_X).requires_grad


def test_zero_means(preset):
    prior = fit(preset)
    if preset._preset["name"] != "hyperbo":
        assert prior.mean(TEST_X).abs().max() == 0
    else:
        assert prior.mean(TEST_X).abs().max() > 0


def test_ablr_s_kernel():
    prior = fit(PRESETS["ablr"]())
    z, kernel = prior.parts.covar_module.network(TEST_X), prior.parts.covar_module.base_kernel
    expected = kernel.bias_variance + kernel.weight_variance * z @ z.T
    torch.testing.assert_close(prior.covariance(TEST_X), expected)


@pytest.mark.parametrize(
    ("name", "default"), [("hyperbo", 0.01), ("fsbo", 0.01), ("ablr", 0.3), ("stationary", 0.01)]
)
def test_noise_to_start_from(name, default):
    build = getattr(PretrainedPrior, name)
    assert float(build(2).noise) == pytest.approx(default)
    assert float(build(2, noise=0.05).noise) == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["hyperbo", "fsbo", "ablr"])
def test_the_seed_is_that_of_the_weights(name):
    build = getattr(PretrainedPrior, name)
    first, same, other = (build(2, seed=seed).covariance(TEST_X) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_unknown_presets_are_refused():
    with pytest.raises(ValueError, match="Unknown mean 'linear'"):
        PretrainedPrior.stationary(2, mean="linear")
    with pytest.raises(ValueError, match="Unknown kernel 'cosine'"):
        PretrainedPrior.hyperbo(2, kernel="cosine")
    with pytest.raises(ValueError, match="dim=0"):
        PretrainedPrior(ConstantMean(), RBFKernel(), dim=0)
