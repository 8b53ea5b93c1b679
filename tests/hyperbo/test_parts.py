"""Parts of a GP, and freezing them."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior

from botorch_transfer.gp.state import freeze, shallow_copy, thaw
from botorch_transfer.hyperbo.features import FeatureKernel, FeatureMean, FeatureNetwork
from botorch_transfer.hyperbo.parts import MIN_NOISE, GPParts, spread


def shared():
    network = FeatureNetwork(2, hidden=(4,))
    return GPParts(FeatureMean(network), FeatureKernel(MaternKernel(ard_num_dims=4), network))


def plain(**kwargs):
    return GPParts(ConstantMean(), ScaleKernel(RBFKernel(ard_num_dims=2)), **kwargs)


@pytest.fixture
def X():
    return torch.rand(3, 5, 2, dtype=torch.double)


@pytest.mark.parametrize("make", [shared, plain])
def test_mean_and_covariance_are_those_of_the_modules(make, X):
    parts = make()
    for parameter in parts.parameters():
        parameter.data.add_(0.2)
    mean, covariance = parts(X)
    torch.testing.assert_close(mean, parts.mean_module(X))
    torch.testing.assert_close(covariance, parts.covar_module(X).to_dense())


def test_shared_features_are_computed_once(X, monkeypatch):
    parts, calls = shared(), []
    forward = FeatureNetwork.forward
    monkeypatch.setattr(
        FeatureNetwork, "forward", lambda self, x: calls.append(1) or forward(self, x)
    )
    parts(X)
    assert len(calls) == 1


def test_other_networks_are_not_mixed_up(X):
    parts = GPParts(
        FeatureMean(FeatureNetwork(2, hidden=(4,), seed=1)),
        FeatureKernel(MaternKernel(ard_num_dims=4), FeatureNetwork(2, hidden=(4,), seed=2)),
    )
    parts.mean_module.weight.data.normal_()
    torch.testing.assert_close(parts(X)[0], parts.mean_module(X))


def test_everything_is_in_double_precision():
    parts = plain(noise=0.3)
    assert {tensor.dtype for tensor in parts.state_dict().values()} == {torch.double}
    assert float(parts.noise.detach()) == pytest.approx(0.3, rel=1e-12)
    lower_bound = parts.likelihood.noise_covar.raw_noise_constraint.lower_bound
    assert float(lower_bound) == pytest.approx(MIN_NOISE)


def test_no_hyperprior_stays():
    kernel = ScaleKernel(
        RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)), outputscale_prior=GammaPrior(2.0, 0.15)
    )
    parts = GPParts(ConstantMean(), kernel)
    assert list(parts.covar_module.named_priors()) == []
    assert not any("prior" in name for name, _ in parts.named_modules())


@pytest.mark.parametrize("make", [shared, plain])
def test_frozen_and_thawed(make, X):
    parts = make()
    names = [name for name, _ in parts.named_parameters()]
    frozen_one = parts.get_parameter(names[0]).requires_grad_(False)
    before, state = parts(X), parts.state_dict()
    trainable = freeze(parts)
    assert list(parts.parameters()) == []
    assert sorted(trainable) == sorted(names)
    assert not trainable[names[0]]
    assert parts.state_dict().keys() == state.keys()
    for left, right in zip(parts(X), before, strict=True):
        assert torch.equal(left, right)
        assert not left.requires_grad
    thaw(parts, trainable)
    assert sorted(name for name, _ in parts.named_parameters()) == sorted(names)
    assert sum(p.requires_grad for p in parts.parameters()) == len(names) - 1
    assert torch.equal(parts.get_parameter(names[0]), frozen_one)
    freeze(parts)
    thaw(parts, trainable, fit=False)
    assert not any(parameter.requires_grad for parameter in parts.parameters())


def test_sharing_survives_copies_and_views():
    parts = shared()
    trainable = freeze(parts)
    for twin in (deepcopy(parts), shallow_copy(parts)):
        assert twin.mean_module.network is twin.covar_module.network
        thaw(twin, trainable)
        assert len(list(twin.parameters())) == len(trainable)
    assert list(parts.parameters()) == []


def test_tied_parameters_stay_tied():
    parts = plain()
    parts.mean_module.other = ConstantMean().double()
    parts.mean_module.other.raw_constant = parts.mean_module.raw_constant
    trainable = freeze(parts)
    parts = deepcopy(parts)
    thaw(parts, trainable)
    assert parts.mean_module.other.raw_constant is parts.mean_module.raw_constant


@pytest.mark.parametrize("make", [shared, plain])
def test_members_of_a_batch_start_alike_and_go_their_own_ways(make, X):
    parts, single = make(), make()
    spread(parts, torch.Size([3]))
    mean, covariance = parts.mean_module(X), parts.covar_module(X).to_dense()
    expected = single(X)
    torch.testing.assert_close(mean, expected[0])
    torch.testing.assert_close(covariance, expected[1])
    for parameter in parts.parameters():
        parameter.data[1] += 0.3
    for parameter in single.parameters():
        parameter.data += 0.3
    torch.testing.assert_close(parts.mean_module(X)[1], single.mean_module(X[1]))
    torch.testing.assert_close(parts.covar_module(X).to_dense()[1], single(X[1])[1])
    assert parts.covar_module.batch_shape == (3,)
