"""MPHD's network, the hyperprior it makes, and its training."""

import math
import pickle
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.optim.utils import sample_all_priors
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from botorch_transfer.gp.state import freeze
from botorch_transfer.hyperprior.fit import (
    ContextNetwork,
    NetworkOptions,
    fit_gamma,
    fit_network,
    network_objective,
)

CONTEXTS = torch.tensor([[1.0, 2.0], [1.0, 5.0], [1.0, 14.0]], dtype=torch.double)
BASE = torch.tensor([3.0, 6.0], dtype=torch.double)


def network(**options) -> ContextNetwork:
    return ContextNetwork(CONTEXTS, BASE, **options)


def test_outputs_are_shape_and_mean():
    found = network()
    for parameter in found.layers[-1].parameters():
        torch.nn.init.zeros_(parameter)
    found.layers[-1].bias.data = torch.tensor([4.0, -3.0], dtype=torch.double)
    shape, rate = found(CONTEXTS)
    torch.testing.assert_close(shape, 3 * torch.tensor(4.0).double().exp().expand(3))
    torch.testing.assert_close(shape / rate, 0.5 * torch.tensor(-3.0).double().exp().expand(3))


def test_bounded_head_is_confined():
    found = network(bounded_head=True)
    for scale in (-1e3, 1e3):
        found.layers[-1].bias.data.fill_(scale)
        for part in found(CONTEXTS):
            assert (part > 0.31).all()
            assert (part < 1.32).all()


def test_contexts_beyond_the_training_data_are_clipped():
    found = network()
    beyond = torch.tensor([[7.0, -3.0], [0.0, 99.0]], dtype=torch.double)
    torch.testing.assert_close(found(beyond), found(CONTEXTS[[0, 2]]))


def test_one_context_only():
    shape, rate = ContextNetwork(CONTEXTS[:1], BASE)(CONTEXTS)
    assert shape.isfinite().all()
    assert (rate > 0).all()


def test_frozen_weights_are_buffers():
    found = network()
    before = found(CONTEXTS)
    state = {name: tensor.clone() for name, tensor in found.state_dict().items()}
    freeze(found)
    assert list(found.parameters()) == []
    for left, right in zip(found(CONTEXTS), before, strict=True):
        assert torch.equal(left, right)
        assert not left.requires_grad
    assert {name: tensor.shape for name, tensor in found.state_dict().items()} == {
        name: tensor.shape for name, tensor in state.items()
    }
    other = network()
    freeze(other)
    other.load_state_dict(state)
    assert torch.equal(other(CONTEXTS)[0], before[0])


def test_any_layers():
    widths = [layer.out_features for layer in network(hidden=(8, 4, 2)).layers[::2]]
    assert widths == [8, 4, 2, 2]
    assert len(network(hidden=()).layers) == 1
    assert {parameter.dtype for parameter in network().parameters()} == {torch.double}


SEEN = torch.tensor([[0.0, 2.0], [1.0, 5.0], [1.0, 14.0]], dtype=torch.double)


@pytest.fixture
def trained() -> ContextNetwork:
    return ContextNetwork(SEEN, torch.tensor([3.0, 6.0], dtype=torch.double))


def test_density_is_that_of_each_inputs_gamma(trained):
    prior = trained.prior(SEEN)
    value = torch.rand(4, 1, 3, dtype=torch.double) + 0.1
    shape, rate = trained(SEEN)
    expected = torch.distributions.Gamma(shape, rate).log_prob(value)
    torch.testing.assert_close(prior.log_prob(value), expected)
    assert isinstance(prior, GammaPrior)


@pytest.mark.parametrize("dim", [1, 3])
def test_on_a_kernel(trained, dim):
    X = torch.rand(4, dim, dtype=torch.double)
    prior = trained.prior(SEEN[:dim])
    kernel = ScaleKernel(MaternKernel(ard_num_dims=dim, lengthscale_prior=prior))
    model = SingleTaskGP(X, X.sum(-1, keepdim=True), covar_module=kernel)
    torch.manual_seed(0)
    sample_all_priors(model)
    lengthscale = model.covar_module.base_kernel.lengthscale
    assert lengthscale.shape == (1, dim)
    assert len(lengthscale.unique()) == dim
    for twin in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied = twin.covar_module.base_kernel.lengthscale_prior
        assert torch.equal(copied.rate, prior.rate)
    single = deepcopy(model).float().covar_module.base_kernel.lengthscale_prior
    assert single.rate.dtype == torch.float


CONTEXT = torch.tensor([[0.0, 1.0], [0.0, 3.0], [1.0, 3.0], [1.0, 6.0]], dtype=torch.double)
LENGTHSCALE = torch.tensor([0.2, 0.5, 0.1, 3.0], dtype=torch.double)
FITTED_BASE = fit_gamma(LENGTHSCALE)
PAPER = NetworkOptions(weight_penalty=0.0, shape_spread=math.inf)


def objective(network, context=CONTEXT, lengthscale=LENGTHSCALE, options=PAPER):
    distinct, index = context.unique(dim=0, return_inverse=True)
    return network_objective(network, distinct, index, lengthscale, options)


@pytest.mark.parametrize("bounded_head", [False, True])
def test_objective_equals_a_direct_evaluation(bounded_head):
    context = CONTEXT[[0, 1, 1, 3]]
    network = ContextNetwork(context, FITTED_BASE, hidden=(5,), bounded_head=bounded_head)
    options = NetworkOptions(weight_penalty=0.7, shape_spread=0.4)
    found = objective(network, context, options=options)
    shape, rate = network(context)
    expected = -torch.distributions.Gamma(shape, rate).log_prob(LENGTHSCALE).sum()
    weights = [network.layers[0].weight, network.layers[2].weight]
    expected = expected + 0.35 * sum(weight.square().sum() for weight in weights)
    if not bounded_head:
        for alpha in shape[[0, 1, 3]]:  # once a context
            expected = expected + 0.5 * ((alpha.log() - FITTED_BASE[0].log()) / 0.4) ** 2
    torch.testing.assert_close(found, expected)
    parameters = list(network.parameters())
    for left, right in zip(
        torch.autograd.grad(found, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(left, right)


def test_training_improves_and_freezes():
    options = replace(PAPER, num_steps=200, learning_rate=1e-2)
    network = fit_network(CONTEXT, LENGTHSCALE, FITTED_BASE, options)
    after = objective(network)
    universal = -torch.distributions.Gamma(*FITTED_BASE).log_prob(LENGTHSCALE).sum()
    assert after < universal - 1
    assert list(network.parameters()) == []


def test_priors_keep_single_estimates_from_narrow_distributions():
    def largest_shape(**changes):
        options = replace(PAPER, num_steps=100, learning_rate=4e-2, **changes)
        return float(fit_network(CONTEXT, LENGTHSCALE, FITTED_BASE, options)(CONTEXT)[0].max())

    assert max(largest_shape(weight_penalty=1.0), largest_shape(shape_spread=0.5)) < 50
    assert largest_shape() > 50


def test_estimates_that_happen_to_be_close_are_no_reason_to_be_sure():
    """Two domains with two inputs each, whose lengthscales are nearly alike."""
    context = torch.tensor([[2.0], [2.0], [3.0], [3.0]], dtype=torch.double)
    lengthscale = torch.tensor([0.500, 0.501, 0.900, 0.901], dtype=torch.double)
    base = fit_gamma(lengthscale)
    options = NetworkOptions(num_steps=300, learning_rate=4e-2)

    def largest_factor(options):
        shape, _ = fit_network(context, lengthscale, base, options)(context)
        return float((shape / base[0]).max())

    assert largest_factor(options) < 2 < 5 < largest_factor(replace(options, shape_spread=math.inf))


def test_a_seed_decides():
    first, same, other = (
        fit_network(CONTEXT, LENGTHSCALE, FITTED_BASE, NetworkOptions(num_steps=3, seed=seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first(CONTEXT)[0], same(CONTEXT)[0])
    assert not torch.equal(first(CONTEXT)[0], other(CONTEXT)[0])


def test_the_random_state_stays():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fit_network(CONTEXT, LENGTHSCALE, FITTED_BASE, NetworkOptions(num_steps=1))
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"num_steps": 0},
        {"learning_rate": 0.0},
        {"weight_penalty": -1.0},
        {"shape_spread": 0.0},
        {"hidden": (16, 0)},
    ],
)
def test_unfit_options_are_refused(options):
    with pytest.raises(ValueError, match="positive"):
        NetworkOptions(**options)


def test_training_stops_where_the_loss_is_not_finite():
    context = torch.tensor([[1.0], [2.0]], dtype=torch.double)
    lengthscale = torch.tensor([0.1, torch.nan], dtype=torch.double)
    base = torch.tensor([3.0, 6.0], dtype=torch.double)
    network = fit_network(context, lengthscale, base, NetworkOptions(num_steps=3))
    assert all(tensor.isfinite().all() for tensor in network.state_dict().values())
