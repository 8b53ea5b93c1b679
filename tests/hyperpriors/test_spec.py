from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from botorch_transfer.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
    Hyperparameter,
)
from botorch_transfer.pretraining.memo import content_key

GAMMA = Hyperparameter(partial(GammaPrior, 3.0, 6.0), start=0.5, lower=1e-4, upper=1e2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_defaults_are_those_of_the_paper() -> None:
    def summary(spec: GPHyperparameters) -> list[tuple[object, ...]]:
        parts = (spec.lengthscale, spec.outputscale, spec.noise)
        return [(type(p.prior()), p.start, p.lower, p.upper) for p in parts]

    noise = (LogNormalPrior, 1e-3, 1e-8, 1e-2)
    assert summary(SOURCE_HYPERPARAMETERS) == [
        (GammaPrior, 0.5, 1e-4, 1e2),
        (GammaPrior, 1.0, 1e-4, 1e2),
        noise,
    ]
    assert summary(RESIDUAL_HYPERPARAMETERS) == [
        (LogNormalPrior, 1.0, 1e-4, 1e2),
        (LogNormalPrior, 0.1, 1e-4, 1e2),
        noise,
    ]
    lengthscale, outputscale = (
        SOURCE_HYPERPARAMETERS.lengthscale,
        SOURCE_HYPERPARAMETERS.outputscale,
    )
    assert (lengthscale.prior().concentration, lengthscale.prior().rate) == (3.0, 6.0)
    assert (outputscale.prior().concentration, outputscale.prior().rate.item()) == (
        2.0,
        pytest.approx(0.15),
    )
    priors = [
        RESIDUAL_HYPERPARAMETERS.lengthscale.prior(),
        RESIDUAL_HYPERPARAMETERS.outputscale.prior(),
    ]
    assert [(p.loc.item(), p.scale.item()) for p in priors] == [(0.5, 1.5), (-2.0, 3.0)]
    noise_prior = SOURCE_HYPERPARAMETERS.noise.prior()
    assert (noise_prior.loc, noise_prior.scale) == (-8.0, 2.0)


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
    draws = GAMMA.without_prior().sample(torch.Size([2000]), generator())
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
    GAMMA.without_prior().sample(torch.Size([3]), generator())
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sampling_leaves_the_generators_of_gpus_as_they_are() -> None:
    torch.cuda.manual_seed_all(7)
    before = torch.cuda.get_rng_state()
    GAMMA.sample(torch.Size([3]), generator())
    assert torch.equal(torch.cuda.get_rng_state(), before)


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
