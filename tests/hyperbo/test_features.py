from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior

from botorch_transfer.gp.state import freeze, shallow_copy, thaw
from botorch_transfer.hyperbo.features import (
    MIN_NOISE,
    FeatureKernel,
    FeatureMean,
    FeatureNetwork,
    GPParts,
    scaled_linear,
    spread,
)


@pytest.fixture
def x():
    return torch.rand(6, 3, dtype=torch.double)


@pytest.fixture
def network():
    return FeatureNetwork(3, hidden=(5, 4))


def test_kernel_is_that_of_the_features(x, network):
    base = ScaleKernel(MaternKernel(ard_num_dims=4)).double()
    kernel = FeatureKernel(base, network)
    y = torch.rand(2, 3, dtype=torch.double)
    torch.testing.assert_close(kernel(x).to_dense(), base(network(x)).to_dense())
    torch.testing.assert_close(kernel(x, y).to_dense(), base(network(x), network(y)).to_dense())
    torch.testing.assert_close(kernel(x, diag=True), base(network(x), diag=True))


def test_linear_kernel(x):
    kernel = scaled_linear(3)
    y = torch.rand(2, 3, dtype=torch.double)
    torch.testing.assert_close(kernel(x, y).to_dense(), 1 + x @ y.T / 3, rtol=1e-6, atol=0)
    torch.testing.assert_close(kernel(x, diag=True), kernel(x).to_dense().diagonal())


def test_a_selection_of_features_is_refused(network):
    with pytest.raises(ValueError, match="must use all features: leave out its active_dims="):
        FeatureKernel(RBFKernel(active_dims=[0]), network)


def naive(network, x):
    for weight, bias in zip(network.weights, network.biases, strict=True):
        x = torch.tanh(torch.einsum("...d,fd->...f", x, weight) + bias)
    return x


@pytest.mark.parametrize("hidden", [(4,), (5, 4), (3, 5, 2)])
@pytest.mark.parametrize("shape", [(6, 3), (2, 6, 3), (0, 3), (3,)])
def test_features_of_inputs_of_any_shape(hidden, shape):
    network = FeatureNetwork(3, hidden)
    x = torch.rand(*shape, dtype=torch.double)
    torch.testing.assert_close(network(x), naive(network, x))


def test_each_member_of_a_batch_has_its_own_weights():
    members = [FeatureNetwork(3, hidden=(5, 4), seed=seed) for seed in range(2)]
    batch = FeatureNetwork(3, hidden=(5, 4))
    for name, parameter in batch.named_parameters():
        parameter.data = torch.stack([member.get_parameter(name) for member in members])
    x = torch.rand(7, 2, 6, 3, dtype=torch.double)
    for index, member in enumerate(members):
        torch.testing.assert_close(batch(x)[:, index], member(x[:, index]))
        torch.testing.assert_close(batch[index](x[:, index]), member(x[:, index]))
    shared = batch(x[0, 0])
    assert shared.shape == (2, 6, 4)


def test_seeds():
    x = torch.rand(6, 3, dtype=torch.double)
    torch.manual_seed(1)
    first = FeatureNetwork(3)(x)
    torch.manual_seed(2)
    assert torch.equal(first, FeatureNetwork(3)(x))
    assert not torch.equal(first, FeatureNetwork(3, seed=1)(x))


def test_the_unit_cube_is_not_saturated():
    x = torch.rand(500, 8, dtype=torch.double)
    z = FeatureNetwork(8)(x)
    assert z.mean(dim=0).abs().max() < 0.3
    assert z.std() > 0.2


@pytest.mark.parametrize("hidden", [(), (3, 0)])
def test_no_units_are_refused(hidden):
    with pytest.raises(ValueError, match="give one or more widths of at least 1"):
        FeatureNetwork(2, hidden=hidden)


def test_mean_is_linear_in_the_features():
    network = FeatureNetwork(3, hidden=(5, 4))
    mean = FeatureMean(network)
    x = torch.rand(2, 6, 3, dtype=torch.double)
    assert mean(x).abs().max() == 0
    mean.weight.data.normal_()
    mean.bias.data.fill_(0.7)
    torch.testing.assert_close(mean(x), network(x) @ mean.weight + 0.7)
    torch.testing.assert_close(mean.of_features(network(x)), mean(x))


# --------------------------------------------------------------------------- mean, kernel and noise


def shared():
    network = FeatureNetwork(2, hidden=(4,))
    return GPParts(FeatureMean(network), FeatureKernel(MaternKernel(ard_num_dims=4), network))


def plain(**kwargs):
    return GPParts(ConstantMean(), ScaleKernel(RBFKernel(ard_num_dims=2)), **kwargs)


@pytest.fixture
def X():
    return torch.rand(3, 5, 2, dtype=torch.double)


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
    torch.testing.assert_close(parts.covar_module[1](X[1]).to_dense(), single(X[1])[1])
    assert parts.covar_module.batch_shape == (3,)
