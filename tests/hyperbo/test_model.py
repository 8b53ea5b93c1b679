"""Pre-trained models against a dense GP, and their two options."""

from copy import deepcopy
from itertools import product

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch.testing import assert_close

from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior
from tests.fits import fit_model as fit
from tests.hyperbo.pretrained_models import FAMILY, NUM_TASKS, PRESETS, TEST_X, build, prior


def naive_posterior(n, preset, noise=None):
    """Textbook conditioning in the prior's units, then back to the user's."""
    X, Y = FAMILY.target(n)
    source = prior(preset)
    mean = source.outcome_mean
    std = source.outcome_spread * (source.num_points / (source.num_points - 1)) ** 0.5
    own_noise = source.noise.expand(n) if noise is None else noise / std.square()
    K = source.covariance(torch.cat([X, TEST_X]))
    gain = torch.linalg.solve(K[:n, :n] + own_noise.diag_embed(), K[:n, n:]).mT
    residual = ((Y - mean) / std).squeeze(-1) - source.mean(X)
    posterior_mean = source.mean(TEST_X) + gain @ residual
    covariance = K[n:, n:] - gain @ K[:n, n:]
    return posterior_mean * std + mean, covariance * std.square(), source.noise * std.square()


def test_an_untrained_prior_is_named(caplog):
    PretrainedGP(*FAMILY.target(3), PretrainedPrior.hyperbo(2))
    assert "The PretrainedPrior is not fitted" in caplog.text


@pytest.mark.parametrize(
    ("preset", "n", "known"), [*product(PRESETS, [0, 6], [False]), ("hyperbo", 4, True)]
)
def test_posterior_is_the_conditioned_prior(preset, n, known):
    Yvar = torch.linspace(0.1, 2, n).double() if known else None
    model = build(n, preset, train_Yvar=Yvar if Yvar is None else Yvar.unsqueeze(-1))
    fit(model)
    mean, covariance, noise = naive_posterior(n, preset, Yvar)
    posterior = model.posterior(TEST_X)
    assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-6, atol=1e-6)
    found = posterior.distribution.covariance_matrix
    assert_close(found, covariance, rtol=1e-6, atol=1e-6)
    if known:
        return
    noisy = model.posterior(TEST_X, observation_noise=True)
    assert_close(noisy.variance.squeeze(-1), covariance.diagonal() + noise, rtol=1e-6, atol=1e-6)


def test_known_noise_without_points():
    """The pre-trained noise stands in for that of the first observation."""
    X, Y = FAMILY.target(0)
    model = PretrainedGP(X, Y, prior(), train_Yvar=Y)
    observed = model.posterior(TEST_X, observation_noise=True)
    added = observed.variance - model.posterior(TEST_X).variance
    expected = prior().noise * model.outcome_transform.stdvs.square()
    assert_close(added, expected.expand(5, 1))


def test_a_residual_kernel_is_fitted_and_the_rest_is_not():
    residual = ScaleKernel(MaternKernel(ard_num_dims=2)).double()
    model = build(6, covar_module=residual)
    assert model.residual_covar_module is residual
    expected = residual(TEST_X).to_dense() + prior().covariance(TEST_X)
    assert_close(model.covar_module(TEST_X).to_dense(), expected)
    pretrained = deepcopy(model.pretrained_covar_module.state_dict())
    before = residual.outputscale.clone()
    fit(model, num_restarts=0)
    assert not torch.equal(residual.outputscale, before)
    for name, tensor in model.pretrained_covar_module.state_dict().items():
        assert torch.equal(tensor, pretrained[name])
    assert build(2).residual_covar_module is None


# --------------------------------------------------------------------------------- fine-tuning


def log_likelihood(model):
    """Without the penalty."""
    model.train()
    output = model.likelihood(model(*model.train_inputs))
    value = output.log_prob(model.train_targets)
    model.eval()
    return float(value.detach())


@pytest.mark.parametrize("preset", PRESETS)
def test_finetuning_improves_the_likelihood(preset):
    model = build(8, preset, finetune=True)
    before = log_likelihood(model)
    posterior = model.posterior(TEST_X).mean
    of_prior = prior(preset).mean(TEST_X).clone()
    fit(model)
    assert log_likelihood(model) > before
    assert not torch.equal(model.posterior(TEST_X).mean, posterior)
    assert torch.equal(prior(preset).mean(TEST_X), of_prior)


def test_finetuning_of_nothing_fits_the_rest():
    mean, kernel = ConstantMean(), ScaleKernel(MaternKernel())
    for parameter in (*mean.parameters(), *kernel.parameters()):
        parameter.requires_grad_(False)
    X, Y = FAMILY.target(5)
    residual = ScaleKernel(MaternKernel()).double()
    model = PretrainedGP(
        X,
        Y,
        PretrainedPrior(mean.double(), kernel.double(), dim=2),
        train_Yvar=torch.full_like(Y, 0.1),
        finetune=True,
        covar_module=residual,
        outcome_transform=None,
    )
    before = [parameter.clone() for parameter in residual.parameters()]
    fit(model)
    assert any(not torch.equal(a, b) for a, b in zip(before, residual.parameters(), strict=True))


def test_penalty_is_a_gaussian_around_the_pretrained_values():
    model = build(4, finetune=True)
    model.train()
    assert float(model._log_penalty().detach()) == 0.0
    weight = model.mean_module.network.weights[0]
    weight.data[0, 1] += 0.3
    model.likelihood.noise_covar.raw_noise.data += 0.5
    expected = -0.5 * (0.3 / 0.1) ** 2 - 0.5 * (0.5 / 0.3) ** 2
    assert float(model._log_penalty().detach()) == pytest.approx(expected)
    model(*model.train_inputs)
    (term,) = model.added_loss_terms()
    assert float(term.loss().detach()) == pytest.approx(expected)


def test_members_of_a_batch_are_pulled_back_on_their_own():
    X, Y = FAMILY.inputs(3, 4), FAMILY.value(FAMILY.inputs(3, 4))
    model = PretrainedGP(X, Y, prior(), finetune=True)
    model.mean_module.weight.data[1] += 2.0
    values = model._log_penalty()
    assert_close(values, torch.tensor([0.0, -2 * (2.0 / 0.3) ** 2, 0.0]).double())


def test_known_noise_has_no_penalty():
    X, Y = FAMILY.target(4)
    model = PretrainedGP(X, Y, prior(), train_Yvar=torch.full_like(Y, 0.3), finetune=True)
    assert not any("noise" in name for name in model._fitted)
    fit(model)


# ------------------------------------------------------------------------------------ unbiased


@pytest.mark.parametrize("n", [0, 6])
@pytest.mark.parametrize("observation_noise", [False, True])
def test_unbiased_covariance(n, observation_noise):
    model, biased = build(n, unbiased=True), build(n)
    posterior = model.posterior(TEST_X, observation_noise=observation_noise)
    expected = biased.posterior(TEST_X, observation_noise=observation_noise)
    factor = NUM_TASKS / (NUM_TASKS - 1 - n)
    assert_close(posterior.mean, expected.mean)
    covariance = factor * expected.distribution.covariance_matrix
    assert_close(posterior.distribution.covariance_matrix, covariance)
    if n == 0:
        return
    called = model(TEST_X)  # what entropy search looks at
    own = biased(TEST_X)
    assert_close(called.covariance_matrix, factor * own.covariance_matrix)


def test_unbiased_with_known_noise():
    X, Y = FAMILY.target(4)
    noise = torch.full_like(Y, 0.7)
    models = [PretrainedGP(X, Y, prior(), noise, unbiased=unbiased) for unbiased in (True, False)]
    left, right = (model.posterior(TEST_X, observation_noise=True) for model in models)
    factor = NUM_TASKS / (NUM_TASKS - 5)
    assert_close(left.variance, factor * right.variance)


@pytest.mark.parametrize("n", [NUM_TASKS - 1, NUM_TASKS])
def test_too_few_tasks_are_refused(n):
    with pytest.raises(ValueError, match=rf"more than {n + 1} source tasks, but the prior has 12"):
        build(n, unbiased=True)
    build(n)
    build(NUM_TASKS - 2, unbiased=True)


def test_unbiased_conditioning_counts_the_new_points():
    model = build(3, unbiased=True)
    X = FAMILY.inputs(2, seed=41)
    model.posterior(X)
    conditioned = model.condition_on_observations(X, FAMILY.value(X))
    all_X = torch.cat([FAMILY.target(3)[0], X])
    all_Y = torch.cat([FAMILY.target(3)[1], FAMILY.value(X)])
    expected = PretrainedGP(all_X, all_Y, prior(), unbiased=True)
    assert_close(conditioned.posterior(TEST_X).mean, expected.posterior(TEST_X).mean)
    assert_close(conditioned.posterior(TEST_X).variance, expected.posterior(TEST_X).variance)
    fantasies = build(0, unbiased=True).fantasize(X, SobolQMCNormalSampler(torch.Size([2]), seed=1))
    assert fantasies.posterior(TEST_X).variance.shape == (2, 5, 1)


@pytest.mark.parametrize("known_noise", [False, True])
def test_leave_one_out_of_unbiased_predictions(known_noise):
    X, Y = FAMILY.target(6)
    noise = torch.full_like(Y, 0.4) if known_noise else None
    model = PretrainedGP(X, Y, prior(), noise, unbiased=True)
    for observation_noise in (False, True):
        predictions = model.loo_posterior(observation_noise)
        for left_out in range(6):
            rows = torch.arange(6) != left_out
            own_noise = None if noise is None else noise[rows]
            twin = PretrainedGP(X[rows], Y[rows], prior(), own_noise, unbiased=True)
            expected = twin.posterior(X[left_out][None], observation_noise=observation_noise)
            assert_close(predictions.mean[left_out], expected.mean)
            assert_close(predictions.variance[left_out], expected.variance)
    with pytest.raises(UnsupportedError, match=r"call loo_posterior\(\)"):
        loo_cv(model)


def test_added_noise_comes_on_top_of_the_priors():
    added = torch.tensor([0.0, 2.0, 0.0]).double()
    model, plain = build(3, likelihood=AddedNoiseLikelihood(added)), build(3)
    assert_close(model.likelihood.noise, plain.likelihood.noise)
    assert (model.likelihood.added > 0).tolist() == [False, True, False]
