"""Step 2 of MPHD's pre-training: its objective and the network's training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from botorch_transfer.hyperpriors.priors import fit_gamma
from botorch_transfer.pretraining.hyperprior.network import (
    ContextNetwork,
    NetworkOptions,
    context_shares,
    fit_network,
    gamma_negative_log_likelihood,
    network_objective,
)

CONTEXT = torch.tensor([[0.0, 1.0], [0.0, 3.0], [1.0, 3.0], [1.0, 6.0]], dtype=torch.double)
LENGTHSCALE = torch.tensor([0.2, 0.5, 0.1, 3.0], dtype=torch.double)
BASE = fit_gamma(LENGTHSCALE)
PAPER = NetworkOptions(weight_penalty=0.0, shape_spread=math.inf)


def objective(network, context=CONTEXT, lengthscale=LENGTHSCALE, options=PAPER):
    return network_objective(network, context, lengthscale, context_shares(context), options)


@pytest.mark.parametrize("bounded_head", [False, True])
def test_objective_equals_a_direct_evaluation(bounded_head):
    context = CONTEXT[[0, 1, 1, 3]]
    network = ContextNetwork(context, BASE, hidden=(5,), bounded_head=bounded_head)
    options = NetworkOptions(weight_penalty=0.7, shape_spread=0.4)
    found = objective(network, context, options=options)
    shape, rate = network(context)
    expected = -torch.distributions.Gamma(shape, rate).log_prob(LENGTHSCALE).sum()
    weights = [network.layers[0].weight, network.layers[2].weight]
    expected = expected + 0.35 * sum(weight.square().sum() for weight in weights)
    if not bounded_head:
        for alpha in shape[[0, 1, 3]]:  # once a context
            expected = expected + 0.5 * ((alpha.log() - BASE[0].log()) / 0.4) ** 2
    torch.testing.assert_close(found, expected)
    parameters = list(network.parameters())
    for left, right in zip(
        torch.autograd.grad(found, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(left, right)


def test_derivatives_in_shape_and_rate_are_the_formulas():
    shape = torch.tensor([0.5, 3.0], dtype=torch.double, requires_grad=True)
    rate = torch.tensor([2.0, 7.0], dtype=torch.double, requires_grad=True)
    value = torch.tensor([0.3, 0.6], dtype=torch.double)
    loss = gamma_negative_log_likelihood(shape, rate, value)
    in_shape, in_rate = torch.autograd.grad(loss, [shape, rate])
    torch.testing.assert_close(in_shape, torch.digamma(shape) - rate.log() - value.log())
    torch.testing.assert_close(in_rate, value - shape / rate)


@pytest.mark.parametrize("bounded_head", [False, True])
def test_derivatives_in_the_network_are_those_of_differences(bounded_head):
    network = ContextNetwork(CONTEXT, BASE, hidden=(4,), bounded_head=bounded_head)
    parameters = dict(network.named_parameters())

    def loss(*values):
        moved = dict(zip(parameters, values, strict=True))
        output = torch.func.functional_call(network, moved, (CONTEXT,))
        return gamma_negative_log_likelihood(*output, LENGTHSCALE)

    assert torch.autograd.gradcheck(loss, tuple(parameters.values()))


def test_training_improves_and_freezes():
    options = replace(PAPER, num_steps=200, learning_rate=1e-2)
    network = fit_network(CONTEXT, LENGTHSCALE, BASE, options)
    after = objective(network)
    universal = gamma_negative_log_likelihood(*BASE.unbind(), LENGTHSCALE)
    assert after < universal - 1
    assert list(network.parameters()) == []


@pytest.mark.parametrize("change", [{"weight_penalty": 1.0}, {"shape_spread": 0.5}])
def test_priors_keep_single_estimates_from_narrow_distributions(change):
    def largest_shape(**changes):
        options = replace(PAPER, num_steps=600, learning_rate=2e-2, **changes)
        return float(fit_network(CONTEXT, LENGTHSCALE, BASE, options)(CONTEXT)[0].max())

    assert largest_shape(**change) < 50 < largest_shape()


def test_estimates_that_happen_to_be_close_are_no_reason_to_be_sure():
    """Two domains with two inputs each, whose lengthscales are nearly alike."""
    context = torch.tensor([[2.0], [2.0], [3.0], [3.0]], dtype=torch.double)
    lengthscale = torch.tensor([0.500, 0.501, 0.900, 0.901], dtype=torch.double)
    base = fit_gamma(lengthscale)
    options = NetworkOptions(num_steps=1500, learning_rate=1e-2)

    def largest_factor(options):
        shape, _ = fit_network(context, lengthscale, base, options)(context)
        return float((shape / base[0]).max())

    assert largest_factor(options) < 2 < 5 < largest_factor(replace(options, shape_spread=math.inf))


def test_a_seed_decides():
    first, same, other = (
        fit_network(CONTEXT, LENGTHSCALE, BASE, NetworkOptions(num_steps=3, seed=seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first(CONTEXT)[0], same(CONTEXT)[0])
    assert not torch.equal(first(CONTEXT)[0], other(CONTEXT)[0])


def test_the_random_state_stays():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fit_network(CONTEXT, LENGTHSCALE, BASE, NetworkOptions(num_steps=1))
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
