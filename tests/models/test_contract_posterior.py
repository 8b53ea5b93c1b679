"""The contract of every model, 1: posteriors."""

import pytest
import torch
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.sampling.normal import SobolQMCNormalSampler
from linear_operator.operators import DenseLinearOperator
from torch.testing import assert_close

from botorch_transfer.gp import strategy
from tests.families import SCALE, ShiftedSines
from tests.models.contract import MINIMAL, noise_in_users_units, outcome_scale, variants

FAMILY = ShiftedSines()
on_few_points = variants("n", everywhere=[5], representatives=[0])


@pytest.mark.gaussian
@on_few_points
def test_shapes_and_dtypes_of_batches(case, n):
    model = case.target(n)
    assert {parameter.dtype for parameter in model.parameters()} <= {torch.double}
    for batch_shape, q in [((), 4), ((1,), 1), ((3,), 4), ((2, 3), 1)]:
        posterior = model.posterior(FAMILY.inputs(*batch_shape, q))
        assert posterior.mean.shape == (*batch_shape, q, 1)
        assert posterior.variance.shape == (*batch_shape, q, 1)
        assert posterior.mean.dtype == posterior.variance.dtype == torch.double
        assert posterior.distribution.covariance_matrix.shape == (*batch_shape, q, q)
        assert posterior.rsample(torch.Size([5])).shape == (5, *batch_shape, q, 1)
        assert (posterior.variance > 0).all()


def test_inputs_of_another_dimension_are_refused(representative):
    for n in (0, 3):
        with pytest.raises(BotorchTensorDimensionError, match="The inputs have 5 columns, but"):
            representative.target(n).posterior(FAMILY.tensor(torch.rand(4, 5)))


@variants("n", everywhere=[5], representatives=[0, 1], siblings=[5])
def test_batches_are_independent_of_each_other(case, n):
    model = case.target(n)
    X = FAMILY.inputs(2, 3, 4)
    batched = model.posterior(X)
    for index in [(0, 0), (0, 2), (1, 1)]:
        single = model.posterior(X[index])
        assert_close(batched.mean[index], single.mean)
        covariance = batched.distribution.covariance_matrix[index]
        assert_close(covariance, single.distribution.covariance_matrix)


@pytest.mark.gaussian
@on_few_points
def test_variances_of_many_points_need_no_joint_covariance(case, n, monkeypatch):
    """Lazy or not, moments are the same."""
    model, inputs = case.target(n), (FAMILY.inputs(6), FAMILY.inputs(2, 6))
    close = {"rtol": 1e-6, "atol": 1e-8 * float(outcome_scale(model)) ** 2}
    wanted = [model.posterior(X) for X in inputs]
    monkeypatch.setattr(strategy, "MAX_JOINT_POINTS", 5)
    for X, expected in zip(inputs, wanted, strict=True):
        posterior = model.posterior(X)
        assert_close(posterior.variance, expected.variance)
        assert_close(posterior.mean, expected.mean)
        assert not isinstance(posterior.distribution.lazy_covariance_matrix, DenseLinearOperator)
        covariance = posterior.distribution.covariance_matrix
        assert_close(covariance, expected.distribution.covariance_matrix, **close)
        monkeypatch.setattr(
            "botorch_transfer.gp.conditioned.MAX_ELEMENTS", 12
        )  # some rows at a time
        with torch.no_grad():
            covariance = model.posterior(X).distribution.covariance_matrix
        assert_close(covariance, expected.distribution.covariance_matrix, **close)


@pytest.mark.gaussian
@on_few_points
def test_is_joint_over_q(case, n):
    model = case.target(n)
    X = FAMILY.inputs(4)
    X[3] = X[2] + 1e-3
    joint = model.posterior(X)
    alone = model.posterior(X.unsqueeze(-2))
    assert_close(joint.mean, alone.mean.squeeze(-2))
    assert_close(joint.variance, alone.variance.squeeze(-2))
    covariance = joint.distribution.covariance_matrix
    assert covariance[2, 3] / covariance[2, 2] > 0.99  # neighbours move together
    eigenvalues = torch.linalg.eigvalsh(covariance)
    assert eigenvalues.min() > -1e-8 * eigenvalues.max()


@variants("n", everywhere=[5], representatives=[0], siblings=[5])
def test_derivatives_in_X(case, n):
    model = case.target(n)
    X = FAMILY.inputs(2, 3).requires_grad_()

    def moments(X):
        distribution = model.posterior(X).distribution
        return distribution.mean, distribution.covariance_matrix

    assert torch.autograd.gradcheck(moments, X, fast_mode=True)


@variants("n", everywhere=[5], representatives=[0])
def test_derivatives_in_single_points(case, n):
    """They have a path of their own, by variances instead of covariances."""
    model = case.target(n)

    def moments(X):
        posterior = model.posterior(X)
        return posterior.mean, posterior.variance

    X = FAMILY.inputs(5, 1).requires_grad_()
    assert torch.autograd.gradcheck(moments, X, fast_mode=True)
    if n > 0:
        X = FAMILY.inputs(1, seed=3).requires_grad_()
        assert torch.autograd.gradgradcheck(moments, X, atol=0.1, fast_mode=True)


def test_derivative_at_a_training_point(case):
    model = case.target(4)
    X = FAMILY.target(4)[0][:2].unsqueeze(0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda X: model.posterior(X).mean, X, atol=1e-3, rtol=1e-4, fast_mode=True
    )


@on_few_points
def test_the_same_question_has_the_same_answer(case, n):
    """With and without gradients."""
    model = case.target(n)
    X = FAMILY.inputs(3, 2)
    first, second = model.posterior(X), model.posterior(X.clone())
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)
    tracked = model.posterior(X.clone().requires_grad_())
    assert_close(first.mean, tracked.mean.detach())
    assert_close(first.variance, tracked.variance.detach())


@pytest.mark.filterwarnings("ignore:The model inputs are of type")
@variants("n", everywhere=[5], representatives=[0])
def test_single_precision(case, n):
    single, double = ShiftedSines(dtype=torch.float), ShiftedSines()
    model = case.build(*single.target(n), case.prior(single))
    posterior = model.posterior(single.inputs(2, 3))
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float
    twin = case.target(n).posterior(double.inputs(2, 3))
    assert_close(posterior.mean.double(), twin.mean, atol=0.03 * SCALE, rtol=0)
    assert_close(posterior.variance.double(), twin.variance, atol=0.03 * SCALE**2, rtol=0)


@pytest.mark.gaussian
@variants("n", everywhere=[5], representatives=[0])
def test_observation_noise(case, n):
    model = case.target(n)
    X = FAMILY.inputs(2, 3)
    latent = model.posterior(X)
    noisy = model.posterior(X, observation_noise=True)
    assert torch.equal(latent.mean, noisy.mean)
    added = noisy.variance - latent.variance
    expected = noise_in_users_units(model)
    assert_close(added, expected.expand_as(added), rtol=1e-4, atol=1e-8)


def test_given_observation_noise(representative):
    model = representative.target(5)
    X = FAMILY.inputs(2, 3)
    noise = FAMILY.tensor(torch.rand(2, 3, 1))
    added = model.posterior(X, observation_noise=noise).variance - model.posterior(X).variance
    assert_close(added, noise * outcome_scale(model) ** 2)


@pytest.mark.parametrize("n", [0, 5])
def test_posterior_transform(representative, n):
    model = representative.target(n)
    X = FAMILY.inputs(2, 3)
    plain = model.posterior(X)
    negative = ScalarizedPosteriorTransform(FAMILY.tensor([-2.0]), offset=1.0)
    transformed = model.posterior(X, posterior_transform=negative)
    assert_close(transformed.mean, 1.0 - 2.0 * plain.mean)
    assert_close(transformed.variance, 4.0 * plain.variance)
    mean = model.posterior(X, posterior_transform=ExpectationPosteriorTransform(n_w=3))
    assert_close(mean.mean, plain.mean.mean(dim=-2, keepdim=True))


@variants("n", everywhere=[5], representatives=[0])
def test_samples_are_reproducible_and_differentiable(case, n):
    model = case.target(n)
    X = FAMILY.inputs(2, 3).requires_grad_()
    draws = []
    for _ in range(2):
        sampler = SobolQMCNormalSampler(torch.Size([8]), seed=3)
        draws.append(sampler(model.posterior(X)))
    assert torch.equal(*draws)
    (gradient,) = torch.autograd.grad(draws[0].sum(), X)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@torch.no_grad()
def test_samples_have_the_posteriors_moments(representative):
    model = representative.target(5)
    X = FAMILY.inputs(3)
    posterior = model.posterior(X)
    samples = posterior.rsample(torch.Size([20_000])).squeeze(-1)
    std = posterior.variance.max().sqrt()
    covariance = posterior.distribution.covariance_matrix
    assert_close(samples.mean(dim=0), posterior.mean.squeeze(-1), atol=0.05 * float(std), rtol=0)
    assert_close(torch.cov(samples.mT), covariance, atol=0.05 * float(std) ** 2, rtol=0)


@variants("n", everywhere=[4], representatives=[0], siblings=[4])
def test_lengthscales(case, n):
    """The family's outcomes change twice as fast along the first input as along the second."""
    first, second = case.target(n).lengthscales().tolist()
    assert 0.1 < first < 1.0
    assert second < 3 * first
    if not case.any_dim and case is not MINIMAL:  # those know the inputs by the target's data only
        assert first < second


def test_lengthscales_of_a_batch(representative):
    X = FAMILY.inputs(3, 4)
    batch = representative.build(X, FAMILY.value(X))
    single = representative.build(X[1], FAMILY.value(X[1]))
    assert batch.train().lengthscales().shape == (3, 2)
    assert batch.training  # the mode stays as it was
    assert_close(batch.lengthscales()[1], single.lengthscales(), rtol=1e-4, atol=0)
