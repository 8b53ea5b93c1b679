from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior
from scipy import integrate, stats

from botorch_transfer.hyperpriors.priors import LogDensityGammaPrior, for_map
from botorch_transfer.pretraining.hyperprior.network import ContextGammaPrior, ContextNetwork


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_it_is_the_density_of_the_logarithm(shape):
    prior = LogDensityGammaPrior(shape, 2.0)
    for value in (0.05, 0.7, 2.0):
        # SciPy's distribution of the logarithm of a Gamma variable of rate one.
        expected = stats.loggamma(shape, loc=-torch.tensor(2.0).log()).logpdf(
            torch.tensor(value).log()
        )
        assert prior.log_prob(torch.tensor(value)).item() == pytest.approx(expected, abs=1e-5)

    def density(logarithm: float) -> float:
        return prior.log_prob(torch.tensor(logarithm).double().exp()).exp().item()

    total, _ = integrate.quad(density, -40, 5, limit=200)
    assert total == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_its_maximum_is_the_mean(shape):
    prior = LogDensityGammaPrior(shape, 2.0)
    value = prior.mean.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(prior.log_prob(value), value)
    assert gradient.item() == pytest.approx(0.0, abs=1e-5)
    for factor in (1e-4, 0.5, 2.0):
        assert prior.log_prob(factor * prior.mean) < prior.log_prob(prior.mean)


def test_draws_are_the_gammas():
    torch.manual_seed(0)
    expected = GammaPrior(3.0, 6.0).sample((5,))
    torch.manual_seed(0)
    assert torch.equal(LogDensityGammaPrior(3.0, 6.0).sample((5,)), expected)


def test_only_gammas_are_changed():
    for prior in (NormalPrior(0.0, 1.0), UniformPrior(0.0, 1.0)):
        assert for_map(prior) is prior
    prior = GammaPrior(0.5, 2.0)
    found = for_map(prior)
    assert isinstance(found, LogDensityGammaPrior)
    assert (found.concentration, found.rate) == (prior.concentration, prior.rate)


def test_independent_inputs():
    contexts = torch.tensor([[0.0, 2.0], [1.0, 5.0]], dtype=torch.double)
    network = ContextNetwork(contexts, torch.tensor([0.6, 0.2], dtype=torch.double))
    prior = ContextGammaPrior(network, contexts)
    value = torch.rand(4, 1, 2, dtype=torch.double) + 0.1
    found = for_map(prior)
    torch.testing.assert_close(found.log_prob(value), prior.log_prob(value) + value.log())
    assert found.sample().shape == (2,)


def test_copies():
    prior = LogDensityGammaPrior(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 2.0]))
    value = torch.tensor([0.3, 0.4])
    expected = prior.log_prob(value)
    for copied in (
        deepcopy(prior),
        pickle.loads(pickle.dumps(prior)),
        prior.expand(torch.Size([3, 2])),
    ):
        torch.testing.assert_close(copied.log_prob(value), expected.expand_as(copied.rate))
    assert prior.double().log_prob(value.double()).dtype == torch.double
