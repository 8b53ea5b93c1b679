"""Defaults, starts and bounds, the residual kernel, likelihoods."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior, HalfCauchyPrior, LogNormalPrior, NormalPrior, UniformPrior
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch.testing import assert_close

from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    Hyperparameter,
    LogDensityGammaPrior,
    LogDensityLogNormalPrior,
    LogPrior,
    UnseenNoiseLikelihood,
    cautious_hyperparameters,
    default_likelihood,
    describe_prior,
    log_density_prior,
    make_prior,
    residual_kernel,
    start_and_bounds,
    target_hyperparameters,
    weight_prior,
)
from botorch_transfer.hyperprior.fit import ContextNetwork
from botorch_transfer.memo import content_key

GAMMA = Hyperparameter(partial(GammaPrior, 3.0, 6.0), start=0.5, lower=1e-4, upper=1e2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


#: Hyperpriors of lengthscale and outputscale, their starts, and the largest noise.
DEFAULTS = {
    "source": (GammaPrior, (3.0, 6.0), GammaPrior, (2.0, 0.15), (0.5, 1.0), 10.0),
    "residual": (LogNormalPrior, (0.5, 1.5), LogNormalPrior, (-2.0, 3.0), (1.0, 0.1), 1e-2),
}


@pytest.mark.parametrize(
    ("spec", "kind"), [(SOURCE_HYPERPARAMETERS, "source"), (RESIDUAL_HYPERPARAMETERS, "residual")]
)
def test_defaults_are_those_of_the_paper_but_for_the_sources_largest_noise(spec, kind) -> None:
    lengthscale, of_lengthscale, outputscale, of_outputscale, starts, largest = DEFAULTS[kind]
    expected = [
        (lengthscale(*of_lengthscale), starts[0], 1e-4, 1e2),
        (outputscale(*of_outputscale), starts[1], 1e-4, 1e2),
        (LogNormalPrior(-8.0, 2.0), 1e-3, 1e-8, largest),
    ]
    x = torch.tensor([0.05, 0.7, 3.0])
    parts = (spec.lengthscale, spec.outputscale, spec.noise)
    for part, (prior, *limits) in zip(parts, expected, strict=True):
        assert [part.start, part.lower, part.upper] == limits
        assert type(part.prior()) is type(prior)
        torch.testing.assert_close(part.prior().log_prob(x), prior.log_prob(x))


@pytest.mark.parametrize("dim", [1, 6])
def test_cautious_hyperpriors_start_at_their_medians_which_are_modes(dim: int) -> None:
    spec = cautious_hyperparameters(dim, variance=0.4, noise=0.02)
    medians = (math.sqrt(dim) * math.exp(-2.0), 0.4, 0.02)
    for part, median in zip((spec.lengthscale, spec.outputscale, spec.noise), medians, strict=True):
        assert part.start == pytest.approx(median)
        around = median * torch.tensor([0.9, 1.0, 1.1])
        prior = part.prior()
        assert int(prior.log_prob(around).argmax()) == 1
        assert float(prior.sample(torch.Size([999])).median()) == pytest.approx(median, rel=0.15)


def test_cautious_starts_stay_within_the_bounds() -> None:
    assert cautious_hyperparameters(2, variance=1e-9).outputscale.start == 1e-4
    assert cautious_hyperparameters(10**9).lengthscale.start == 1e2


@pytest.mark.parametrize(("dim", "variance"), [(0, 0.1), (2, 0.0), (2, math.nan)])
def test_cautious_hyperpriors_need_positive_arguments(dim: int, variance: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        cautious_hyperparameters(dim, variance)


def test_hyperpriors_by_name() -> None:
    assert target_hyperparameters("paper", 3) is RESIDUAL_HYPERPARAMETERS
    chosen, expected = target_hyperparameters("cautious", 3, 0.2), cautious_hyperparameters(3, 0.2)
    for part, of in ((chosen.outputscale, expected.outputscale), (chosen.noise, expected.noise)):
        assert str(part.content()) == str(of.content())
    with pytest.raises(ValueError, match="must be 'cautious' or 'paper', not 'bold'"):
        target_hyperparameters("bold", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_tasks", [1, 7])
def test_cautious_weights_are_most_likely_equal_shares(num_tasks: int) -> None:
    shares = torch.tensor([0.5, 1.0, 2.0]) / num_tasks
    assert int(weight_prior("cautious", num_tasks).log_prob(shares).argmax()) == 1
    assert int(weight_prior("paper", num_tasks).log_prob(shares).argmax()) == 0


def test_every_prior_is_a_new_object() -> None:
    assert GAMMA.prior() is not GAMMA.prior()


def test_constraint() -> None:
    constraint = GAMMA.constraint()
    assert constraint.lower_bound.item() == pytest.approx(1e-4)
    assert constraint.upper_bound.item() == pytest.approx(1e2)
    assert constraint.initial_value_untransformed.item() == 0.5
    assert constraint.transform(torch.tensor(0.0)) == 1.0


def test_samples_follow_the_hyperprior() -> None:
    draws = GAMMA.sample(torch.Size([2000]), generator())
    assert draws.dtype is torch.double
    assert stats.kstest(draws.numpy(), stats.gamma(3.0, scale=1 / 6.0).cdf).pvalue > 0.01


def test_samples_without_hyperprior() -> None:
    draws = replace(GAMMA, make_prior=None).sample(torch.Size([2000]), generator())
    normal = draws.expm1().log()
    assert stats.kstest(normal.numpy(), "norm").pvalue > 0.01


@given(st.integers(0, 100), st.sampled_from([(), (3,), (2, 4)]))
def test_samples_are_reproducible_and_within_the_bounds(seed: int, shape: tuple[int, ...]) -> None:
    tight = Hyperparameter(partial(GammaPrior, 3.0, 6.0), start=0.5, lower=0.4, upper=0.6)
    draws = tight.sample(torch.Size(shape), generator(seed))
    assert draws.shape == shape
    assert ((draws >= 0.4) & (draws <= 0.6)).all()
    assert torch.equal(draws, tight.sample(torch.Size(shape), generator(seed)))


def test_samples_differ_from_call_to_call() -> None:
    source = generator()
    first, second = (GAMMA.sample(torch.Size([3]), source) for _ in range(2))
    assert not torch.equal(first, second)


def test_sampling_leaves_the_global_generator_as_it_is() -> None:
    before = torch.random.get_rng_state()
    GAMMA.sample(torch.Size([3]), generator())
    replace(GAMMA, make_prior=None).sample(torch.Size([3]), generator())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_priors() -> None:
    spec = SOURCE_HYPERPARAMETERS.without_priors()
    for part in (spec.lengthscale, spec.outputscale, spec.noise):
        assert part.prior() is None
    assert spec.noise.start == SOURCE_HYPERPARAMETERS.noise.start
    assert SOURCE_HYPERPARAMETERS.noise.prior() is not None


def test_equal_content_in_other_objects() -> None:
    again = Hyperparameter(lambda: GammaPrior(3.0, 6.0), start=0.5, lower=1e-4, upper=1e2)
    assert content_key(again) == content_key(GAMMA)


@pytest.mark.parametrize(
    "other",
    [
        Hyperparameter(partial(GammaPrior, 3.0, 6.1), 0.5, 1e-4, 1e2),
        Hyperparameter(partial(LogNormalPrior, 3.0, 6.0), 0.5, 1e-4, 1e2),
        Hyperparameter(partial(GammaPrior, 3.0, 6.0), 0.6, 1e-4, 1e2),
        Hyperparameter(partial(GammaPrior, 3.0, 6.0), 0.5, 1e-3, 1e2),
        Hyperparameter(partial(GammaPrior, 3.0, 6.0), 0.5, 1e-4, 1e3),
        Hyperparameter(None, 0.5, 1e-4, 1e2),
    ],
)
def test_other_content(other: Hyperparameter) -> None:
    assert content_key(other) != content_key(GAMMA)


@pytest.mark.parametrize("family", [UniformPrior, NormalPrior, LogNormalPrior])
def test_parameters_that_are_not_in_the_state_dict_count(family: type) -> None:
    one, two = (
        Hyperparameter(partial(family, 0.0, upper), start=0.5, lower=0.1, upper=1.0)
        for upper in (1.0, 2.0)
    )
    assert content_key(one) != content_key(two)


@pytest.mark.parametrize(
    ("start", "lower", "upper"),
    [
        (1.0, 0.0, 2.0),
        (1.0, -1.0, 2.0),
        (0.5, 1.0, 2.0),
        (3.0, 1.0, 2.0),
        (1.0, 0.1, math.inf),
        (math.nan, 0.1, 1.0),
    ],
)
def test_bounds_are_checked(start: float, lower: float, upper: float) -> None:
    with pytest.raises(ValueError, match=r"must satisfy 0 < lower <= start <= upper < inf"):
        Hyperparameter(None, start, lower, upper)


def test_the_unbounded_corner_is_cut_off():
    start, lower, upper = start_and_bounds(GammaPrior(0.5, 2.0))
    assert start == 0.25
    expected = stats.gamma.ppf(0.01, 0.5, scale=0.5)
    torch.testing.assert_close(float(lower), expected, rtol=1e-5, atol=0)
    assert upper == 250.0


def test_a_density_that_vanishes_at_zero_needs_no_more_than_a_bound():
    start, lower, _ = start_and_bounds(GammaPrior(2.0, 4.0))
    torch.testing.assert_close(lower, 1e-4 * start)


def test_each_input_has_bounds_of_its_own():
    prior = GammaPrior(torch.tensor([0.5, 2.0]), torch.tensor([2.0, 4.0]))
    for column, (shape, rate) in enumerate([(0.5, 2.0), (2.0, 4.0)]):
        alone = start_and_bounds(GammaPrior(shape, rate))
        for together, single in zip(start_and_bounds(prior), alone, strict=True):
            torch.testing.assert_close(together[column], single)


def test_bounds_of_a_uniform_distribution():
    bounds = start_and_bounds(UniformPrior(torch.tensor(1.0), torch.tensor(3.0)))
    assert [float(part) for part in bounds] == [2.0, 1.0, 3.0]


def test_defaults_of_the_residual_kernel() -> None:
    kernel = residual_kernel(3)
    assert type(kernel.base_kernel) is RBFKernel
    torch.testing.assert_close(kernel.outputscale.item(), 0.1, atol=1e-6, rtol=0)
    torch.testing.assert_close(kernel.base_kernel.lengthscale, torch.ones(1, 3))
    assert isinstance(kernel.base_kernel.lengthscale_prior, LogNormalPrior)
    assert (kernel.outputscale_prior.loc, kernel.outputscale_prior.scale) == (-2.0, 3.0)
    for constraint in (
        kernel.raw_outputscale_constraint,
        kernel.base_kernel.raw_lengthscale_constraint,
    ):
        assert constraint.lower_bound.item() == pytest.approx(1e-4)
        assert constraint.upper_bound.item() == pytest.approx(1e2)


def test_other_kernel_hyperparameters_and_batch() -> None:
    kernel = residual_kernel(2, torch.Size([3]), SOURCE_HYPERPARAMETERS, "matern32")
    assert isinstance(kernel.base_kernel, MaternKernel)
    assert kernel.base_kernel.nu == 1.5
    assert kernel.base_kernel.lengthscale.shape == (3, 1, 2)
    assert kernel.outputscale.shape == (3,)
    assert isinstance(kernel.outputscale_prior, GammaPrior)


def test_a_residual_kernel_without_priors() -> None:
    kernel = residual_kernel(2, hyperparameters=SOURCE_HYPERPARAMETERS.without_priors())
    assert not list(kernel.named_priors())


@pytest.mark.parametrize("batch_shape", [torch.Size(), torch.Size([2])])
def test_noise_is_inferred_within_its_bounds(batch_shape: torch.Size) -> None:
    noise = SOURCE_HYPERPARAMETERS.noise
    likelihood = default_likelihood(batch_shape, None)
    assert isinstance(likelihood, GaussianLikelihood)
    assert likelihood.noise.shape == (*batch_shape, 1)
    torch.testing.assert_close(likelihood.noise, torch.full((*batch_shape, 1), noise.start))
    constraint = likelihood.noise_covar.raw_noise_constraint
    assert float(constraint.lower_bound) == pytest.approx(noise.lower)
    assert float(constraint.upper_bound) == pytest.approx(noise.upper)


def test_without_a_hyperprior() -> None:
    free = SOURCE_HYPERPARAMETERS.without_priors().noise
    assert not list(default_likelihood(torch.Size(), None, free).named_priors())
    assert len(list(default_likelihood(torch.Size(), None).named_priors())) == 1


def test_known_noise_is_left_to_botorch_where_there_is_any() -> None:
    assert default_likelihood(torch.Size(), torch.ones(3, 1)) is None


def test_known_noise_before_there_is_any() -> None:
    likelihood = default_likelihood(torch.Size([2]), torch.ones(2, 0, 1))
    assert isinstance(likelihood, UnseenNoiseLikelihood)
    expected = torch.full((2, 1), RESIDUAL_HYPERPARAMETERS.noise.start)
    torch.testing.assert_close(likelihood.noise, expected)
    # From the first observation on it is that of the points.
    seen = likelihood.get_fantasy_likelihood(noise=torch.full((2, 1), 0.3))
    torch.testing.assert_close(seen.noise, torch.full((2, 1), 0.3))


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
        expected = stats.loggamma(shape, loc=-math.log(2.0)).logpdf(math.log(value))
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
    values = torch.rand(3, 2 * len(DENSITIES), generator=generator()).double().requires_grad_()
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
