from __future__ import annotations

import pytest
import torch
from gpytorch.means import ConstantMean, ZeroMean

from botorch_transfer.pretraining.pretrained.parts import PRESETS, build_preset
from tests.kernels.tasks import points

NETWORK = {"hidden": (4, 3), "seed": 1}
ARGUMENTS = {
    "hyperbo": {"dim": 2, "kernel": "matern52", **NETWORK},
    "fsbo": {"dim": 2, "kernel": "matern52", **NETWORK},
    "ablr": {"dim": 2, **NETWORK},
    "stationary": {"dim": 2, "kernel": "rbf", "mean": "constant"},
}


def test_every_preset_is_tested():
    assert ARGUMENTS.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_gp_in_double_precision(name):
    mean, kernel = build_preset(name, ARGUMENTS[name])
    X = points(6, 2)
    covariance = kernel(X).to_dense()
    assert mean(X).shape == (6,)
    assert covariance.dtype is torch.double
    assert torch.linalg.eigvalsh(covariance).min() > -1e-12
    again = build_preset(name, ARGUMENTS[name])[1]
    assert torch.equal(again(X).to_dense(), covariance)  # the seed is its own


@pytest.mark.parametrize("name", ["hyperbo", "fsbo", "ablr"])
def test_networks_follow_their_seed(name):
    X = points(6, 2)
    first, other = (
        build_preset(name, {**ARGUMENTS[name], "seed": seed})[1](X).to_dense() for seed in (1, 2)
    )
    assert not torch.equal(first, other)


def test_means():
    assert isinstance(build_preset("fsbo", ARGUMENTS["fsbo"])[0], ZeroMean)
    assert isinstance(build_preset("ablr", ARGUMENTS["ablr"])[0], ZeroMean)
    assert isinstance(build_preset("stationary", ARGUMENTS["stationary"])[0], ConstantMean)
    mean, kernel = build_preset("hyperbo", ARGUMENTS["hyperbo"])
    shared = {id(parameter) for parameter in mean.parameters()}
    assert shared & {id(parameter) for parameter in kernel.parameters()}  # one network for both
    with pytest.raises(ValueError, match="Unknown mean 'linear': choose 'constant' or 'zero'"):
        build_preset("stationary", {**ARGUMENTS["stationary"], "mean": "linear"})
