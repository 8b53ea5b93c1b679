"""HyperBO+'s ensemble: its members and their weights."""

import math
import warnings

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
)
from botorch.cross_validation import loo_cv
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior, UniformPrior
from scipy import stats
from torch.testing import assert_close

from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior
from botorch_transfer.data import datasets, default_context
from botorch_transfer.hyperprior.fit import log_likelihoods
from botorch_transfer.hyperprior.models import effective_sample_size, systematic_resample
from botorch_transfer.pretraining import NetworkOptions
from tests.hyperprior.domains import draw_domain, draw_domains
from tests.members import TEST_X, build, data, hyperprior, member

# -------------------------------------------------------------------------------- members, weights


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("known_noise", [False, True])
def test_members_are_gps(n, known_noise):
    X, Y = data(n)
    Yvar = torch.full_like(Y, 0.02) if known_noise else None
    model = build(n, train_Yvar=Yvar)
    posterior = model.posterior(TEST_X)
    assert isinstance(posterior, GaussianMixturePosterior)
    for index in range(8):
        expected = member(model, index, X, Y, Yvar).posterior(TEST_X)
        assert_close(posterior.mean[index], expected.mean, rtol=1e-6, atol=1e-8)
        covariance = posterior.distribution.covariance_matrix[index]
        assert_close(covariance, expected.distribution.covariance_matrix, rtol=1e-5, atol=1e-8)


def test_weights_are_the_likelihoods():
    X, Y = data(7)
    model = build(7, num_samples=500, num_members=100)
    draws = hyperprior().sample(500, 2)
    weights = log_likelihoods(draws, X, Y.squeeze(-1), None, "matern52").softmax(dim=0)
    effective = 1 / weights.square().sum()
    assert_close(model.effective_sample_size, effective)
    constants = model.mean_module.constant
    counts = (constants.unsqueeze(-1) == draws.constant).sum(dim=0)
    assert counts.sum() == 100
    assert ((counts - 100 * weights).abs() < 1 + 1e-9).all()


def test_the_papers_hundred_draws_collapse():
    few, many = (build(40, num_samples=num, num_members=100) for num in (200, 4096))
    assert few.effective_sample_size < 0.2 * 200
    assert many.effective_sample_size > 2 * few.effective_sample_size


def test_collapse_is_worth_a_warning():
    X, Y = data(30)
    wrong = hyperprior(lengthscale=UniformPrior(5.0, 9.0), noise=UniformPrior(1e-6, 2e-6))
    with pytest.warns(RuntimeWarning, match="only 1.0 of 64 draws.*raise num_samples="):
        model = FullyBayesianHyperpriorGP(X, Y, wrong, num_samples=64)
    assert model.posterior(TEST_X).mean.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(3)
        build(0, num_samples=4)  # all of the few there are


def test_data_that_no_draw_explains(monkeypatch):
    monkeypatch.setattr(datasets, "LARGEST", math.inf)
    X, Y = data(3)
    with pytest.warns(RuntimeWarning, match=r"only 0\.0 of 64 draws"):
        model = FullyBayesianHyperpriorGP(X, 1e200 * Y, hyperprior(), num_samples=64)
    assert model.effective_sample_size == 0
    constants = hyperprior().sample(64, 2).constant
    assert torch.isin(constants, model.mean_module.constant).all()


def test_without_points_it_is_the_hyperprior():
    model = build(0, num_samples=4096, num_members=200)
    assert model.effective_sample_size == pytest.approx(4096)
    mixture = model.posterior(TEST_X).mixture_mean
    assert_close(mixture, torch.full((4, 1), 0.5).double(), atol=0.2, rtol=0)
    variance = model.posterior(TEST_X).mixture_variance
    assert_close(variance, torch.full((4, 1), 2.0).double(), atol=0.4, rtol=0)


def test_contexts_reach_the_members():
    network = NetworkOptions(num_steps=100, learning_rate=0.02)
    domains = [draw_domain([0.1, 2.0], (25, 25), seed=s, discrete_dims=[0]) for s in range(4)]
    learned = Hyperprior.fit(domains, num_restarts=0, network=network)
    X, Y = data(0)
    options = {"num_samples": 500, "num_members": 100}
    first, second = (
        FullyBayesianHyperpriorGP(X, Y, learned, context=default_context(2, [dim]), **options)
        for dim in (0, 1)
    )
    lengthscale = [each.covar_module.base_kernel.lengthscale[:, 0] for each in (first, second)]
    assert lengthscale[0][:, 0].mean() < lengthscale[0][:, 1].mean()
    assert lengthscale[1][:, 1].mean() < lengthscale[1][:, 0].mean()


def test_an_empirical_hyperprior():
    learned = Hyperprior.fit(draw_domains(), kind="empirical", num_restarts=0)
    X, Y = data(4)
    model = FullyBayesianHyperpriorGP(X, Y, learned, num_samples=200, num_members=20)
    assert torch.isin(model.covar_module.outputscale, learned.estimates.outputscale).any()


# -------------------------------------------------------------------------- fits, states, units


def test_a_state_brings_its_members():
    model, other = build(5), build(3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.mean_module.constant, model.mean_module.constant)
    assert torch.equal(other.effective_sample_size, model.effective_sample_size)
    X, Y = data(3)
    expected = member(model, 2, X, Y).posterior(TEST_X)
    assert_close(other.posterior(TEST_X).mean[2], expected.mean)


def test_seeds_decide():
    first, same, other = (build(4, seed=seed).mean_module.constant for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("outcome_scale", ["per_task", "raw"])
def test_standardized_outcomes(outcome_scale):
    X, Y = data(6)
    prior = hyperprior(outcome_scale=outcome_scale)
    options = {"num_samples": 256, "num_members": 8}
    if outcome_scale == "raw":
        options["outcome_transform"] = Standardize(1)
    model = FullyBayesianHyperpriorGP(X, 1000 * Y + 7, prior, **options)
    options["outcome_transform"] = None
    standardized = FullyBayesianHyperpriorGP(X, (Y - Y.mean()) / Y.std(), prior, **options)
    expected = standardized.posterior(TEST_X)
    found = model.posterior(TEST_X)
    scale, offset = 1000 * Y.std(), 1000 * Y.mean() + 7
    assert_close(found.mean, expected.mean * scale + offset)
    assert_close(found.variance, expected.variance * scale**2)


@pytest.mark.parametrize("task_feature", [None, 1])
def test_raw_inputs_have_the_weights_of_transformed_ones(task_feature):
    X, Y = data(6)
    bounds = torch.tensor([[-3.0, 100.0], [5.0, 300.0]], dtype=torch.double)
    transform = Normalize(2, bounds=bounds)
    raw = transform.untransform(X)
    if task_feature is not None:
        raw = torch.stack([raw[:, 0], torch.full((6,), 7.0), raw[:, 1]], dim=-1)
    prior = hyperprior(outcome_scale="per_task")
    prior.input_transform = transform.eval()
    options = {"num_samples": 256, "num_members": 8}
    model = FullyBayesianHyperpriorGP(raw, Y, prior, task_feature=task_feature, **options)
    expected = FullyBayesianHyperpriorGP(X, Y, hyperprior(outcome_scale="per_task"), **options)
    assert_close(model.effective_sample_size, expected.effective_sample_size)
    assert_close(model.posterior(raw).mean, expected.posterior(X).mean)


def test_extreme_draws_do_no_harm():
    tiny = GammaPrior(0.01, 0.01)
    prior = hyperprior(lengthscale=tiny, outputscale=tiny, noise=tiny)
    for n in (0, 1, 6):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = FullyBayesianHyperpriorGP(*data(n), prior, num_samples=512)
            posterior = model.posterior(TEST_X)
        assert posterior.mean.isfinite().all()
        assert (posterior.variance >= 0).all()


# ------------------------------------------------------------------------------------------ refused


def test_batches_of_targets_are_refused():
    X, Y = data(4)
    with pytest.raises(InputDataError, match="does not support batches of targets"):
        FullyBayesianHyperpriorGP(X.expand(2, 4, 2), Y.expand(2, 4, 1), hyperprior())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": GaussianLikelihood()}, "likelihood comes from the hyperprior"),
        ({"covar_module": MaternKernel()}, "covar_module comes from the hyperprior"),
        ({"num_samples": 0}, "must be positive"),
        ({"num_members": 0}, "must be positive"),
    ],
)
def test_unfit_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(3, **options)


@pytest.mark.parametrize("batch_shape", [(), (2, 3)])
@pytest.mark.parametrize("n", [0, 5])
def test_shapes(n, batch_shape):
    model = build(n)
    X = torch.rand(*batch_shape, 4, 2, dtype=torch.double)
    posterior = model.posterior(X)
    assert posterior.mean.shape == (*batch_shape, 8, 4, 1)
    assert posterior.mixture_mean.shape == (*batch_shape, 4, 1)
    assert posterior.rsample(torch.Size([5])).shape == (5, *batch_shape, 8, 4, 1)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [0, 5])
def test_observation_noise(n, known_noise):
    _, Y = data(n)
    model = build(n, train_Yvar=torch.full_like(Y, 0.3) if known_noise else None)
    latent, noisy = (model.posterior(TEST_X, observation_noise=flag) for flag in (False, True))
    added = (noisy.variance - latent.variance).squeeze(-1)
    expected = model.likelihood.noise.mean(dim=-1, keepdim=True).expand(8, 4)
    assert_close(added, expected)
    given = torch.full((4, 1), 0.7, dtype=torch.double)
    added = model.posterior(TEST_X, observation_noise=given).variance - latent.variance
    assert_close(added, given.expand(8, 4, 1))


@pytest.mark.parametrize("n", [0, 4])
def test_acquisitions_average_over_members(n):
    model = build(n)
    X, (_, Y) = TEST_X.unsqueeze(-2), data(4)
    posterior = model.posterior(X)
    mean, std = posterior.mean.squeeze(-1).squeeze(-1), posterior.variance.sqrt().squeeze()
    normal = torch.distributions.Normal(0.0, 1.0)
    improvement = ProbabilityOfImprovement(model, Y.max())(X)
    expected = normal.cdf((mean - Y.max()) / std).mean(dim=-1)
    assert_close(improvement, expected, rtol=1e-4, atol=1e-6)
    bound = UpperConfidenceBound(model, beta=9.0)(X)
    assert_close(bound, (mean + 3 * std).mean(dim=-1))
    assert LogExpectedImprovement(model, Y.max())(X).isfinite().all()


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize(("n", "batch_shape"), [(0, ()), (4, (3,))])
def test_conditioning_equals_a_rebuilt_member(n, known_noise, batch_shape):
    X, Y = data(n)
    model = build(n, train_Yvar=torch.full_like(Y, 0.2) if known_noise else None)
    new_X = torch.rand(*batch_shape, 2, 2, dtype=torch.double)
    new_Y = new_X.sum(dim=-1, keepdim=True)
    noise = torch.full_like(new_Y, 0.3) if known_noise else None
    model.posterior(TEST_X)
    conditioned = model.condition_on_observations(new_X, new_Y, noise=noise)
    assert conditioned.num_target_points == n + 2
    posterior = conditioned.posterior(TEST_X.expand(*batch_shape, 4, 2))
    for batch in range(3) if batch_shape else [()]:
        all_X, all_Y = (torch.cat([old, new[batch]]) for old, new in ((X, new_X), (Y, new_Y)))
        Yvar = None
        if noise is not None:
            Yvar = torch.cat([torch.full_like(Y, 0.2), noise[batch]])
        for index in (0, 7):
            expected = member(model, index, all_X, all_Y, Yvar).posterior(TEST_X)
            assert_close(posterior.mean[batch][index], expected.mean, rtol=1e-5, atol=1e-7)
            assert_close(posterior.variance[batch][index], expected.variance, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("of_members", [False, True])
def test_points_may_be_each_members_own(of_members):
    X, Y = data(4)
    model = build(4)
    new_X = torch.rand(*([8] if of_members else []), 2, 2, dtype=torch.double)
    new_Y = torch.rand(8, 2, 1, dtype=torch.double)
    model.posterior(TEST_X)
    posterior = model.condition_on_observations(new_X, new_Y).posterior(TEST_X)
    for index in (0, 7):
        its_X = new_X[index] if of_members else new_X
        single = member(model, index, torch.cat([X, its_X]), torch.cat([Y, new_Y[index]]))
        expected = single.posterior(TEST_X)
        assert_close(posterior.mean[index], expected.mean, rtol=1e-5, atol=1e-7)


def test_outcomes_of_batches_may_be_each_members_own():
    model = build(4)
    X = torch.rand(3, 2, 2, dtype=torch.double)
    Y = torch.rand(3, 8, 2, 1, dtype=torch.double)
    model.posterior(TEST_X)
    posterior = model.condition_on_observations(X, Y).posterior(TEST_X)
    assert posterior.mean.shape == (3, 8, 4, 1)
    for batch in range(3):
        alone = model.condition_on_observations(X[batch], Y[batch]).posterior(TEST_X)
        assert_close(posterior.mean[batch], alone.mean)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [0, 4])
def test_fantasies(n, known_noise):
    _, Y = data(n)
    model = build(n, train_Yvar=torch.full_like(Y, 0.2) if known_noise else None)
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
    fantasies = model.fantasize(TEST_X[:2], sampler)
    posterior = fantasies.posterior(TEST_X)
    assert posterior.mean.shape == (3, 8, 4, 1)
    assert (posterior.variance[..., :2, :] < model.posterior(TEST_X[:2]).variance).all()


def test_knowledge_gradient_is_the_mean_over_members():
    model, sampler = build(4), SobolQMCNormalSampler(torch.Size([3]), seed=0)
    gradient = qKnowledgeGradient(model, num_fantasies=3, sampler=sampler)
    X = torch.rand(2, 4, 2, dtype=torch.double)
    fantasies = model.fantasize(X[:, :1], sampler)
    mean = fantasies.posterior(X[:, 1:].movedim(1, 0).unsqueeze(-2)).mean
    assert_close(gradient(X), mean.mean(dim=(0, 2, 3, 4)))


@pytest.mark.parametrize("known_noise", [False, True])
def test_leave_one_out(known_noise):
    X, Y = data(5)
    Yvar = torch.full_like(Y, 0.2) if known_noise else None
    model = build(5, train_Yvar=Yvar)
    predictions = loo_cv(model).posterior
    assert predictions.mean.shape == (5, 8, 1, 1)
    for out in range(5):
        rows = torch.arange(5) != out
        noise = None if Yvar is None else Yvar[rows]
        single = member(model, 3, X[rows], Y[rows], noise)
        expected = single.posterior(X[out : out + 1])
        added = model.likelihood.noise[3].mean()
        assert_close(predictions.mean[out, 3], expected.mean, rtol=1e-5, atol=1e-6)
        assert_close(predictions.variance[out, 3], expected.variance + added, rtol=1e-4, atol=1e-6)


def test_noise_of_as_many_points_as_members():
    """Its dimensions tell whose it is, whatever their sizes."""
    model = build(4)
    members = model.batch_shape[0]
    X = TEST_X[:3].expand(members, 3, -1)
    noise = torch.arange(1.0, members + 1).double().reshape(-1, 1, 1).expand(members, 3, 1)
    latent = model.posterior(X).variance
    added = model.posterior(X, observation_noise=noise).variance - latent
    expected = noise.unsqueeze(-3).expand_as(added)
    assert_close(added, expected)
    own = noise.unsqueeze(0).expand(members, members, 3, 1)  # each member's own
    added = model.posterior(X, observation_noise=own).variance - latent
    assert_close(added, own)


@pytest.mark.parametrize("n", [0, 7])
def test_points_one_by_one_are_those_of_all_together(n):
    """As members predict them, without a copy of their data for each point."""
    model, X = build(n), torch.rand(6, 1, 2, dtype=torch.double, requires_grad=True)
    single, joint = model.posterior(X), model.posterior(X.squeeze(1))
    for name in ("mean", "variance"):
        ours, twin = getattr(single, name)[..., 0, 0], getattr(joint, name)[..., 0].mT
        assert_close(ours, twin, rtol=1e-6, atol=1e-6)
        totals = [each.cos().sum() for each in (ours, twin)]
        slopes = [torch.autograd.grad(total, X, retain_graph=True)[0] for total in totals]
        assert_close(*slopes, rtol=1e-6, atol=1e-6)


def test_effective_sample_size():
    weights = torch.tensor([0.5, 0.25, 0.25]).double().log() + 700
    assert_close(effective_sample_size(weights), torch.tensor(1 / 0.375).double())
    alone = torch.tensor([0.0, -torch.inf])
    assert effective_sample_size(alone) == 1


def test_resampling_is_unbiased():
    weights = torch.tensor([0.03, 0.97]).double()
    counts = [int((systematic_resample(weights.log(), 10, s) == 0).sum()) for s in range(2000)]
    assert abs(sum(counts) / 2000 - 0.3) < 0.05
    assert stats.mode(counts).mode == 0


def test_equal_weights_keep_everything():
    assert systematic_resample(torch.zeros(7), 7, seed=1).tolist() == list(range(7))
