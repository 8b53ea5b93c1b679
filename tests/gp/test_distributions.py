"""Hyperpriors' families, and densities of the logarithm."""

import pytest
import torch
from gpytorch.priors import GammaPrior, HalfCauchyPrior, LogNormalPrior, NormalPrior, UniformPrior
from scipy import integrate, stats
from torch.testing import assert_close

from botorch_transfer.gp.hyperpriors import (
    LogDensityGammaPrior,
    LogDensityLogNormalPrior,
    LogPrior,
    describe_prior,
    log_density_prior,
    make_prior,
)
from botorch_transfer.hyperprior.fit import ContextNetwork

PRIORS = [GammaPrior(2.0, 3.0), NormalPrior(2.0, 3.0), UniformPrior(2.0, 3.0)]


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_a_description_makes_the_same_prior(prior):
    family, parameters = describe_prior(prior)
    assert parameters.tolist() == [2.0, 3.0]
    twin = make_prior(family, parameters)
    assert type(twin) is type(prior)
    value = torch.tensor([2.1, 2.9])
    assert_close(twin.log_prob(value), prior.log_prob(value))


def test_outside_of_its_bounds_a_density_is_zero():
    prior = make_prior("uniform", torch.tensor([2.0, 3.0]))
    assert prior.log_prob(torch.tensor(4.0)) == -torch.inf


@pytest.mark.parametrize("prior", [LogNormalPrior(0.0, 1.0), NormalPrior(torch.zeros(2), 1.0)])
def test_other_distributions_are_refused(prior):
    with pytest.raises(ValueError, match=f"{type(prior).__name__} is not supported as a"):
        describe_prior(prior)


@pytest.mark.parametrize("value", [0.05, 0.7, 2.0])
def test_the_logarithm_of_a_log_normal_variable_is_normal(value):
    prior = LogDensityLogNormalPrior(-1.5, 0.8)
    expected = stats.norm(-1.5, 0.8).logpdf(torch.tensor(value).log())
    assert prior.log_prob(torch.tensor(value)).item() == pytest.approx(expected, abs=1e-5)
    wider = prior.expand(torch.Size([3]))
    assert type(wider) is LogDensityLogNormalPrior
    assert_close(wider.log_prob(torch.full((3,), value)), torch.full((3,), float(expected)))


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
        assert log_density_prior(prior) is prior
    prior = GammaPrior(0.5, 2.0)
    found = log_density_prior(prior)
    assert isinstance(found, LogDensityGammaPrior)
    assert (found.concentration, found.rate) == (prior.concentration, prior.rate)


def test_independent_inputs():
    contexts = torch.tensor([[0.0, 2.0], [1.0, 5.0]], dtype=torch.double)
    network = ContextNetwork(contexts, torch.tensor([0.6, 0.2], dtype=torch.double))
    prior = network.prior(contexts)
    value = torch.rand(4, 1, 2, dtype=torch.double) + 0.1
    found = log_density_prior(prior)
    assert_close(found.log_prob(value), prior.log_prob(value) + value.log())
    assert found.sample().shape == (2,)


DENSITIES = {
    "none": None,
    "gamma": GammaPrior(2.0, 3.0),
    "log gamma": LogDensityGammaPrior(0.5, 3.0),
    "gammas": GammaPrior(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0])),
    "log-normal": LogNormalPrior(-0.3, 1.2),
    "log log-normal": LogDensityLogNormalPrior(-0.3, 1.2),
    "normal": NormalPrior(0.2, 3.0),
    "half-Cauchy": HalfCauchyPrior(1.0),
}


def test_log_densities_and_derivatives_of_all_hyperpriors():
    """One in another form than the common ones by automatic differentiation."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, 2 * len(DENSITIES), generator=generator, dtype=torch.double)
    values.requires_grad_()
    pairs = values.split(2, dim=-1)
    expected = torch.cat(
        [
            torch.zeros_like(pair) if prior is None else prior.double().log_prob(pair)
            for prior, pair in zip(DENSITIES.values(), pairs, strict=True)
        ],
        dim=-1,
    )
    (slope,) = torch.autograd.grad(expected.sum(), values)
    log_prior = LogPrior([(prior, 2) for prior in DENSITIES.values()])
    density, derivative = log_prior(values.detach())
    assert_close(density, expected.detach())
    assert_close(derivative, slope)


def test_a_normal_hyperparameter_may_be_negative():
    log_prior = LogPrior([(NormalPrior(1.0, 2.0), 1), (GammaPrior(1.0, 1.0), 1)])
    density, derivative = log_prior(torch.tensor([[-3.0, 1.0]]).double())
    assert_close(density[0, 0], NormalPrior(1.0, 2.0).log_prob(torch.tensor(-3.0)).double())
    assert_close(derivative, torch.tensor([[1.0, -1.0]]).double())


def test_a_uniform_density_has_no_slope():
    values = torch.tensor([[0.5], [1.5]]).double()
    density, slope = LogPrior([(UniformPrior(0.0, 2.0).double(), 1)])(values)
    assert_close(density, torch.full_like(values, 0.5).log())
    assert not slope.any()
