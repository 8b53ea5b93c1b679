"""The contract of every model, 6 and 7: few points, odd data, and the same numbers twice."""

from functools import partial

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.optim import optimize_acqf
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer.joint.models import JointTransferGP
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.pretraining import SourceGPs, clear_memos
from tests.families import OFFSET, SCALE, ShiftedSines
from tests.fits import fit_model
from tests.models.contract import (
    BUDGET,
    assert_same_posterior,
    bounds,
    flat_acquisitions,
    on_every_model,
    own_units,
    variants,
    where,
)

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=61)


fit = partial(fit_model, num_restarts=1, max_iter=5)


def assert_sound(model):
    for observation_noise in (False, True):
        posterior = model.posterior(TEST_X, observation_noise=observation_noise)
        assert posterior.mean.isfinite().all()
        assert posterior.variance.isfinite().all()
        assert (posterior.variance > 0).all()


@on_every_model
def test_no_points_give_the_transferred_prior(case):
    """A point that tells nothing leaves what the sources say."""
    model = case.target(0)
    X, _ = FAMILY.target(1)
    anything = FAMILY.tensor([0.0])
    huge = torch.full_like(anything, 1e12)
    uninformed = case.rebuild(model, X, anything, huge)
    prior = case.rebuild(model, X[:0], anything[:0])
    assert_same_posterior(prior.posterior(TEST_X), uninformed.posterior(TEST_X), atol=1e-6)


def is_on_source_gps(case):
    model_class = case.model_class
    return issubclass(model_class, SourcePosteriorGP) and model_class.prior_class is SourceGPs


@where(is_on_source_gps)
def test_parts_of_the_sources_add_up_to_the_prior_mean(case):
    """The report would otherwise say of sources that are used that they are not."""
    model = case.target(0).eval()
    with torch.no_grad():
        parts = model.source_parts(TEST_X, model.prior.task_names)
        torch.testing.assert_close(parts.sum(dim=0), model(TEST_X).mean)


@pytest.mark.gaussian
def test_prior_is_in_the_users_units(case):
    model = case.target(0)
    posterior = model.posterior(TEST_X)
    truth = FAMILY.value(TEST_X)
    std = posterior.variance.sqrt()
    assert (posterior.mean - OFFSET).abs().max() < 3 * SCALE
    assert (std < 3 * SCALE).all()
    assert (std > 1e-3 * SCALE).all()
    assert (posterior.mean - truth).square().mean().sqrt() < SCALE
    own = case.rebuild(model, TEST_X[:0], TEST_X[:0, 0]).posterior(TEST_X)
    torch.testing.assert_close(own_units(model, posterior.mean), own.mean)


@where(lambda case: case.exact)
def test_prior_equals_forward(case):
    model = case.target(0)
    posterior = model.posterior(TEST_X)
    mean, covariance = model.mean_module(TEST_X), model.covar_module(TEST_X).to_dense()
    torch.testing.assert_close(own_units(model, posterior.mean).squeeze(-1), mean)
    scale = model.outcome_transform.stdvs.square() if hasattr(model, "outcome_transform") else 1.0
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance * scale)


@variants(
    "n, known_noise",
    everywhere=[(1, True), (0, False)],
    representatives=[(2, False)],
    siblings=[(1, True)],
)
def test_few_points(case, n, known_noise):
    X, Y = FAMILY.target(n)
    model = fit(case.build(X, Y, train_Yvar=torch.full_like(Y, 0.1) if known_noise else None))
    assert_sound(model)
    with flat_acquisitions(case, n):
        bound = UpperConfidenceBound(model, beta=9.0)
        candidate, value = optimize_acqf(bound, bounds(), q=1, **BUDGET)
    assert candidate.isfinite().all()
    assert value.isfinite()


def test_hyperparameters_start_at_their_starts_without_points(case):
    fresh, fitted = case.target(0), fit(case.target(0))
    after = dict(fitted.named_parameters())
    for name, parameter in fresh.named_parameters():
        # Joint models have source tasks to fit; see tests/joint/test_joint.py.
        if not isinstance(fresh, JointTransferGP) or "conditional" not in name:
            assert torch.equal(parameter, after[name]), name


@pytest.mark.gaussian
def test_a_first_point_is_learned_from(case):
    prior, model = case.target(0), case.target(1)
    X, Y = FAMILY.target(1)
    before, after = prior.posterior(X), model.posterior(X)
    assert after.variance < before.variance
    # In an ensemble, the own model's step from its prior mean may overshoot what the sources say.
    if case.interpolates:
        assert (after.mean - Y).abs() <= (before.mean - Y).abs() + 1e-6 * SCALE


@variants("n", everywhere=[5], representatives=[1])
def test_constant_outcomes(case, n):
    X, Y = FAMILY.target(n)
    model = fit(case.build(X, torch.full_like(Y, OFFSET)))
    assert_sound(model)


@variants("known_noise", everywhere=[False], representatives=[True])
def test_repeated_points(case, known_noise):
    X, Y = FAMILY.target(2)
    X, Y = X.repeat(4, 1), Y.repeat(4, 1) + FAMILY.tensor(torch.linspace(-1, 1, 8)).unsqueeze(-1)
    model = fit(case.build(X, Y, train_Yvar=torch.full_like(Y, 0.5) if known_noise else None))
    assert_sound(model)


ODD = {
    "one point": (FAMILY.inputs(1), FAMILY.value(FAMILY.inputs(1))),
    "constant": (FAMILY.inputs(4), FAMILY.tensor([[3.0]] * 4)),
    "repeated": (FAMILY.inputs(1).repeat(4, 1), FAMILY.value(FAMILY.inputs(4))),
}


def test_odd_source_tasks(case):
    prior = case.pretrain({**FAMILY.sources((5,)), **ODD}, input_transform=None)
    assert_sound(case.build(*FAMILY.target(0), prior))
    assert_sound(fit(case.build(*FAMILY.target(3), prior)))


@variants("scale", everywhere=[1e6], representatives=[1e-3])
def test_any_units(case, scale):
    """A change of the outcomes' unit changes nothing else."""
    sources = {name: (X, Y * scale) for name, (X, Y) in FAMILY.sources().items()}
    prior = case.pretrain(sources, input_transform=None)
    X, Y = FAMILY.target(3)
    posterior = case.build(X, Y * scale, prior).posterior(TEST_X)
    expected = case.target(3).posterior(TEST_X)
    torch.testing.assert_close(posterior.mean / scale, expected.mean, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(posterior.variance / scale**2, expected.variance, rtol=1e-2, atol=0)


@where(lambda case: not case.sibling)  # Hypothesis does not take the fixture
@settings(max_examples=3)
@given(
    n=st.integers(0, 4),
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4),
    places=st.lists(st.floats(0, 1, width=16), min_size=8, max_size=8),
)
def test_any_few_points(case, n, values, places):
    X = FAMILY.tensor(places).reshape(4, 2)[:n]
    Y = FAMILY.tensor(values).unsqueeze(-1)[:n]
    assert_sound(case.build(X, Y))


# ----------------------------------------------------------------------------------- the same twice


def test_two_calls_give_the_same_numbers(case):
    """Whatever the random state, which a fit leaves as it is."""

    def run():
        clear_memos()
        prior = case.pretrain(FAMILY.sources((5, 4)), input_transform=None)
        model = case.build(*FAMILY.target(3), prior)
        state = torch.get_rng_state()
        fit(model)
        assert torch.equal(torch.get_rng_state(), state)
        return model.posterior(TEST_X)

    first = run()
    torch.rand(3)
    second = run()
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)


@where(lambda case: not case.ordered)
def test_order_of_source_tasks(case):
    posteriors = []
    for names in (["task 0", "task 1", "task 2"], ["task 2", "task 0", "task 1"]):
        sources = {name: FAMILY.sources((5, 4, 3))[name] for name in names}
        prior = case.pretrain(sources, input_transform=None)
        posteriors.append(case.build(*FAMILY.target(4), prior).posterior(TEST_X))
    assert_same_posterior(*posteriors, rtol=1e-6)


@where(lambda case: not case.in_turn and not case.sibling)
def test_order_of_points(case):
    X, Y = FAMILY.target(5)
    flipped = case.build(X.flip(0), Y.flip(0)).posterior(TEST_X)
    assert_same_posterior(flipped, case.build(X, Y).posterior(TEST_X))
