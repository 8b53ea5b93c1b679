"""The contract of every model: batches of models, several targets at once."""

from copy import deepcopy

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths

from tests.families import ShiftedSines
from tests.fits import fit_model, log_posterior
from tests.models.contract import assert_same_posterior, load_member, parts, variants

# An ensemble is a batch already.
pytestmark = pytest.mark.gaussian

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(4, seed=81)


def batch(n, *batch_shape):
    X = FAMILY.inputs(*batch_shape, n, seed=82)
    return X, FAMILY.value(X, shift=0.1)


@variants(
    "n, known_noise",
    everywhere=[(4, False)],
    representatives=[(0, False), (1, True)],
    siblings=[(4, False)],
)
def test_batches_of_models_are_independent(case, n, known_noise):
    X, Y = batch(n, 2)
    noise = torch.full_like(Y, 0.5) if known_noise else None
    model = case.build(X, Y, train_Yvar=noise)
    assert model.batch_shape == (2,)
    posterior = model.posterior(TEST_X)
    assert posterior.mean.shape == (2, 4, 1)
    points = model.posterior(TEST_X.reshape(4, 1, 1, 2))
    assert points.mean.shape == (4, 2, 1, 1)
    for index in range(2):
        single = case.build(X[index], Y[index], train_Yvar=None if noise is None else noise[index])
        expected = single.posterior(TEST_X)
        torch.testing.assert_close(posterior.mean[index], expected.mean)
        torch.testing.assert_close(
            posterior.distribution.covariance_matrix[index], expected.distribution.covariance_matrix
        )
        torch.testing.assert_close(points.variance[:, index, 0], expected.variance)


def test_batches_of_batches(representative):
    X, Y = batch(3, 2, 2)
    model = representative.build(X, Y)
    posterior = model.posterior(TEST_X)
    assert posterior.mean.shape == (2, 2, 4, 1)
    expected = representative.build(X[1, 0], Y[1, 0]).posterior(TEST_X)
    torch.testing.assert_close(posterior.mean[1, 0], expected.mean)


def test_batches_fit_as_their_members_do(case):
    X, Y = batch(5, 2)
    model = case.build(X, Y)
    start = deepcopy(model)
    brief = {"options": {"maxiter": 8}}
    fit_model(model, num_restarts=1, optimizer_kwargs=brief)
    for index in range(2):
        before = load_member(start, case.build(X[index], Y[index]), index)
        after = load_member(model, case.build(X[index], Y[index]), index)
        values = [sum(map(log_posterior, parts(each))) for each in (before, after)]
        assert values[1] > values[0] or case.frozen
        member = Member(model.posterior(TEST_X), index)
        assert_same_posterior(member, after.posterior(TEST_X), rtol=1e-5)


class Member:
    """One member of a batch of posteriors."""

    def __init__(self, posterior, index):
        self.mean, self.variance = posterior.mean[index], posterior.variance[index]
        self.distribution = posterior.distribution[index]


@variants("n", everywhere=[3], representatives=[0])
def test_batches_condition_as_their_members_do(case, n):
    X, Y = batch(n, 2)
    new_X = FAMILY.inputs(2, 2, seed=83)
    model = case.build(X, Y)
    model.posterior(TEST_X)
    posterior = model.condition_on_observations(new_X, FAMILY.value(new_X)).posterior(TEST_X)
    single = case.build(X[1], Y[1])
    single.posterior(TEST_X)
    conditioned = single.condition_on_observations(new_X[1], FAMILY.value(new_X[1]))
    assert_same_posterior(Member(posterior, 1), conditioned.posterior(TEST_X), rtol=1e-5)


def test_batches_in_acquisitions(representative):
    X, Y = batch(3, 2)
    model = representative.build(X, Y)
    sampler = SobolQMCNormalSampler(torch.Size([8]), seed=0)
    acquisition = qLogExpectedImprovement(model, 55.0, sampler)
    assert acquisition(FAMILY.inputs(5, 1, 2)).shape == (5, 2)


def test_paths_of_batches(case):
    X, Y = batch(3, 2)
    model = case.build(X, Y, train_Yvar=torch.full_like(Y, 1e-3))
    paths = draw_matheron_paths(model, torch.Size([5]))
    assert paths(TEST_X).shape == (5, 2, 4)
    posterior = model.posterior(X)
    deviation = (paths(X).unsqueeze(-1) - posterior.mean) / posterior.variance.sqrt()
    assert deviation.abs().max() < 5
    if case.interpolates:
        torch.testing.assert_close(paths(X), Y.squeeze(-1).expand(5, 2, 3), atol=0.3, rtol=0)


@variants("n", everywhere=[4], representatives=[0])
def test_a_state_is_expanded_to_a_batch(case, n):
    """As in BoTorch's tutorial of RGPE, which predicts each point from the others."""
    X, Y = FAMILY.target(n)
    single = case.build(X, Y)
    for parameter in single.parameters():
        parameter.data += 0.1 * parameter.requires_grad
    state = {name: part.expand(3, *[-1] * part.ndim) for name, part in single.state_dict().items()}
    model = case.build(X.expand(3, n, 2), Y.expand(3, n, 1))
    model.load_state_dict(state)
    found, expected = model.posterior(TEST_X), single.posterior(TEST_X)
    for moment in ("mean", "variance"):
        each = getattr(expected, moment).expand(3, 4, 1)
        torch.testing.assert_close(getattr(found, moment), each, rtol=1e-6, atol=1e-8)
