"""The contract of every model, 3: conditioning and fantasies equal a rebuilt model."""

import pytest
import torch
from botorch import settings
from botorch.sampling.normal import SobolQMCNormalSampler

from tests.families import ShiftedSines
from tests.models.contract import (
    assert_same_posterior,
    in_users_units,
    own_units,
    raw_transform,
    to_raw,
    variants,
)

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=31)
#: A known noise variance, in the user's units.
YVAR = 0.7


def build(case, n, known_noise=False):
    X, Y = FAMILY.target(n)
    return case.build(X, Y, train_Yvar=torch.full_like(Y, YVAR) if known_noise else None)


def own_noise(model, Y):
    """The known noise variance in the model's own units."""
    return YVAR / (own_units(model, Y + 1.0) - own_units(model, Y)).pow(-2)


def assert_equals_rebuilt(case, model, conditioned, X, Y, known_noise=False):
    """Compares with a model built on all points at once, transforms kept."""
    old_X, old_Y = FAMILY.target(model.num_target_points)
    shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
    all_X, all_Y = (
        torch.cat([old.expand(*shape, *old.shape), new.expand(*shape, *new.shape[-2:])], dim=-2)
        for old, new in ((old_X, X), (old_Y, Y))
    )
    noise = own_noise(model, all_Y).squeeze(-1) if known_noise else None
    twin = case.rebuild(model, all_X, own_units(model, all_Y).squeeze(-1), noise)
    test_X = TEST_X.expand(*shape, *TEST_X.shape)
    expected = in_users_units(model, twin.posterior(test_X))
    assert_same_posterior(conditioned.posterior(test_X), expected)


@variants(
    "n, q, known_noise",
    everywhere=[(0, 3, True), (4, 1, False)],
    representatives=[(4, 3, True)],
    siblings=[(4, 1, False)],
)
def test_conditioning(case, n, q, known_noise):
    model = build(case, n, known_noise)
    X = FAMILY.inputs(q, seed=41)
    Y = FAMILY.value(X)
    model.posterior(X)
    noise = own_noise(model, Y) if known_noise else None
    conditioned = model.condition_on_observations(X, Y, noise=noise)
    assert conditioned.num_target_points == n + q
    assert_equals_rebuilt(case, model, conditioned, X, Y, known_noise)
    assert model.num_target_points == n


@pytest.mark.gaussian
@variants(
    "n, outcomes_first", everywhere=[(4, True)], representatives=[(0, False), (0, True), (4, False)]
)
def test_conditioning_on_batches(case, n, outcomes_first):
    model = build(case, n)
    model.posterior(TEST_X)
    X = FAMILY.inputs(3, 2, seed=41)
    Y = FAMILY.value(X)
    if outcomes_first:  # many outcomes at the same inputs, as fantasies are
        X = X[0].expand(3, 2, 2)
        Y = FAMILY.value(X) + FAMILY.tensor([0.0, 1.0, 2.0]).reshape(3, 1, 1)
    conditioned = model.condition_on_observations(X, Y)
    assert conditioned.posterior(TEST_X).mean.shape == (3, 5, 1)
    assert_equals_rebuilt(case, model, conditioned, X, Y)


def test_conditioning_again(case):
    model = build(case, 2)
    X = FAMILY.inputs(4, seed=41)
    conditioned = model
    for rows in (slice(0, 1), slice(1, 4)):
        conditioned.posterior(TEST_X)
        conditioned = conditioned.condition_on_observations(X[rows], FAMILY.value(X[rows]))
    assert_equals_rebuilt(case, model, conditioned, X, FAMILY.value(X))


def test_conditioning_on_raw_inputs(case):
    unit_model = build(case, 4)
    X, Y = FAMILY.target(4)
    model = case.build(to_raw(X), Y, case.raw_prior(), input_transform=raw_transform())
    new_X = FAMILY.inputs(2, seed=41)
    posteriors = []
    for each, to in ((unit_model, lambda X: X), (model, to_raw)):
        each.posterior(to(TEST_X))
        conditioned = each.condition_on_observations(to(new_X), FAMILY.value(new_X))
        posteriors.append(conditioned.posterior(to(TEST_X)))
    assert_same_posterior(*posteriors)


@pytest.mark.gaussian
@variants(
    "n, known_noise, shape",
    everywhere=[(4, True, (2,))],
    representatives=[(0, False, ()), (0, False, (2,)), (1, True, ())],
)
def test_fantasies(case, n, known_noise, shape):
    model = build(case, n, known_noise)
    X = FAMILY.inputs(*shape, 2, seed=41)
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=5)
    fantasies = model.fantasize(X, sampler)
    drawn = fantasies.train_targets[..., n:].unsqueeze(-1)
    draws = SobolQMCNormalSampler(torch.Size([3]), seed=5)
    noisy = draws(model.posterior(X, observation_noise=True))
    torch.testing.assert_close(drawn, own_units(model, noisy).detach())
    assert fantasies.posterior(TEST_X.expand(*shape, 5, 2)).mean.shape == (3, *shape, 5, 1)
    assert_equals_rebuilt(case, model, fantasies, X, noisy.detach(), known_noise)


# Without an observation yet whose noise could be known, a usual one stands in.
@pytest.mark.parametrize(("n", "given"), [(0, True), (4, True), (0, False)])
def test_fantasies_with_noise(representative, n, given):
    model = build(representative, n, known_noise=True)
    X = FAMILY.inputs(2, seed=41)
    options = {"observation_noise": own_noise(model, FAMILY.value(X))} if given else {}
    fantasies = model.fantasize(X, SobolQMCNormalSampler(torch.Size([3])), **options)
    posterior = fantasies.posterior(X)
    assert posterior.mean.shape == (3, 2, 1)
    assert posterior.mean.isfinite().all()
    assert (posterior.variance < model.posterior(X).variance).all()


@variants("n", everywhere=[4], representatives=[0])
def test_fantasies_are_differentiable(case, n):
    model = build(case, n)
    X = FAMILY.inputs(1, seed=41).requires_grad_()

    def value(X):
        sampler = SobolQMCNormalSampler(torch.Size([3]), seed=5)
        with settings.propagate_grads(True):
            return model.fantasize(X, sampler, propagate_grads=True).posterior(TEST_X[:2]).mean

    assert torch.autograd.gradcheck(value, X, atol=1e-3, rtol=1e-4, fast_mode=True)


def test_fantasizing_leaves_the_model_as_it_is(case):
    model = build(case, 4)
    before = model.posterior(TEST_X)
    fantasies = model.fantasize(FAMILY.inputs(2), SobolQMCNormalSampler(torch.Size([3])))
    fantasies.posterior(TEST_X)
    after = model.posterior(TEST_X)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)
    assert model.num_target_points == 4


@pytest.mark.filterwarnings("ignore:Non-strict enforcement")  # SingleTaskGP warns, too
def test_fantasies_at_no_points(representative):
    model = build(representative, 3)
    expected = model.posterior(TEST_X).mean.expand(3, 5, 1)
    fantasies = model.fantasize(FAMILY.inputs(0), SobolQMCNormalSampler(torch.Size([3])))
    torch.testing.assert_close(fantasies.posterior(TEST_X).mean, expected)
