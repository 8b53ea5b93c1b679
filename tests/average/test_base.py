"""What averages have in common; each test runs on a guarded model and on a ``TransferGP``."""

from functools import partial

import pytest
import torch
from botorch.acquisition.analytic import NoisyExpectedImprovement
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import Normalize
from botorch.optim.fit import fit_gpytorch_mll_scipy, fit_gpytorch_mll_torch
from botorch.utils.evaluation import AIC, BIC, MLL, compute_in_sample_model_fit_metric
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from gpytorch.settings import skip_posterior_variances
from linear_operator import to_linear_operator
from linear_operator.operators import SumLinearOperator
from torch.testing import assert_close

from botorch_transfer import GuardedTransferGP, ScaMLGP, SourceGPs, SourcePopulation, TransferGP
from botorch_transfer.average.base import PlainGP, mixed, mixed_moments
from botorch_transfer.gp import strategy
from tests.families import ShiftedSines
from tests.fits import fit_model
from tests.models.contract import assert_same_posterior

FAMILY = ShiftedSines()
SOURCES = FAMILY.sources()
GPS = SourceGPs.fit(SOURCES, num_restarts=0)
PRIOR = {"population": SourcePopulation.fit(SOURCES), "scaml": GPS}
TEST_X = FAMILY.inputs(4, seed=5)
GUARDED = partial(GuardedTransferGP, prior=GPS)
AVERAGES = {"guarded": GUARDED, "transfer": partial(TransferGP, prior=PRIOR)}


@pytest.fixture(params=AVERAGES)
def build(request):
    """Builds a model of ``n`` points, whose units are not the sources'."""

    def make(n=4, **options):
        X, Y = FAMILY.target(n)
        return AVERAGES[request.param](X, 3.0 * Y + 20.0, **options)

    return make


def users(model, targets):
    """A model's outcomes in the users' units."""
    transform = getattr(model, "outcome_transform", None)
    return targets if transform is None else targets * transform.stdvs[0] + transform.means[0]


# ---------------------------------------------------------------------------------------- mixtures


def _normal(seed: int) -> MultivariateNormal:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(2, 3, 3, generator=generator, dtype=torch.double)
    mean = torch.randn(2, 3, generator=generator, dtype=torch.double)
    return MultivariateNormal(mean, half @ half.mT)


def test_moments_by_drawing_from_the_mixture():
    members, num = [_normal(0), _normal(1), _normal(2)], 400_000
    shares = torch.tensor([[0.3, 0.5, 0.2], [0.9, 0.1, 0.0]], dtype=torch.double)
    joint = mixed(members, shares)
    torch.manual_seed(0)
    side = torch.multinomial(shares, num, replacement=True).T
    every = torch.stack([member.rsample(torch.Size([num])) for member in members], dim=-1)
    draws = every.gather(-1, side[..., None, None].expand(-1, -1, 3, 1)).squeeze(-1)
    assert_close(draws.mean(0), joint.mean, atol=0.03, rtol=0)
    for b in range(2):
        covariance = torch.cov(draws[:, b].mT)
        assert_close(covariance, joint.covariance_matrix[b], atol=0.1, rtol=0)
    mean, variance = mixed_moments([(m.mean, m.variance) for m in members], shares)
    assert_close(mean, joint.mean)
    assert_close(variance, joint.variance)


def test_a_mixture_without_variances_has_its_mean():
    members, shares = [_normal(0), _normal(1)], torch.tensor([0.25, 0.75]).double()
    with skip_posterior_variances():
        mean = mixed(members, shares).mean
    assert_close(mean, 0.25 * members[0].mean + 0.75 * members[1].mean)


def test_sums_of_operators_are_mixed(monkeypatch):
    """They cannot be added to a zero, as ``sum`` would."""
    monkeypatch.setattr("botorch_transfer.gp.strategy.MAX_JOINT_POINTS", 2)
    members, shares = [_normal(0), _normal(1)], torch.tensor([0.25, 0.75]).double()
    halves = [
        MultivariateNormal(
            member.mean,
            SumLinearOperator(*[to_linear_operator(0.5 * member.covariance_matrix)] * 2),
        )
        for member in members
    ]
    expected, found = mixed(members, shares), mixed(halves, shares)
    assert_close(found.covariance_matrix, expected.covariance_matrix)


# --------------------------------------------------------------------------------------- the models


def test_it_is_no_exact_gp(build):
    model = build()
    assert not isinstance(model, ExactGP)
    assert isinstance(model, GPyTorchModel)
    for name in ("mean_module", "covar_module"):
        assert not hasattr(model, name)
    assert list(model.members)[-1] == "plain"
    assert type(model.plain) is PlainGP


def test_what_needs_an_exact_gp_is_refused(build):
    model = build(train_Yvar=torch.ones(4, 1).double())
    with pytest.raises(UnsupportedError, match="Model is not a `SingleTaskGP`"):
        NoisyExpectedImprovement(model, TEST_X)
    message = "is not one exact GP, .*do not apply: call loo_posterior\\(\\) instead"
    with pytest.raises(UnsupportedError, match=message):
        efficient_loo_cv(model)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    message += r".*fit_gpytorch_mll\(mll\)"
    for fit in (fit_gpytorch_mll_scipy, fit_gpytorch_mll_torch):
        with pytest.raises(UnsupportedError, match=message):
            fit(mll)
    with pytest.raises(UnsupportedError, match=message):
        mll.train()(model(*model.train_inputs), model.train_targets)
    for criterion in (AIC, BIC, MLL):
        with pytest.raises(UnsupportedError, match=message):
            compute_in_sample_model_fit_metric(model, criterion)
    with pytest.raises(UnsupportedError, match=message):
        model.train()(TEST_X)


def test_a_fit_by_another_optimizer_reaches_all(build):
    model = build()
    scaml = next(each for each in model.members.values() if isinstance(each, ScaMLGP))
    parts = (next(model.plain.covar_module.parameters()), scaml.task_weights.raw_weights)
    before = [part.detach().clone() for part in parts]
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"options": {"maxiter": 10}}
    fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_scipy, optimizer_kwargs=options)
    for part, value in zip(parts, before, strict=True):
        assert not torch.equal(part, value)
    assert not any(each.training for each in (model, *model.members.values()))


def test_a_fit_is_that_of_each_model(build):
    model, twin = build(6), build(6)
    brief = {"num_restarts": 1, "optimizer_kwargs": {"options": {"maxiter": 5}}}
    fit_model(model, **brief)
    for each in twin.members.values():
        fit_model(each, **brief)
    for ours, expected in zip(model.members.values(), twin.members.values(), strict=True):
        assert_same_posterior(ours.posterior(TEST_X), expected.posterior(TEST_X))


# ------------------------------------------------------------------------------------- data, states


def test_new_data_go_to_all_in_their_units(build):
    model = build()
    X, Y = FAMILY.target(6)
    before = model.shares.clone()
    expected = 3.0 * Y.squeeze(-1) + 25.0
    transform = model.outcome_transform
    own = (expected - transform.means.squeeze()) / transform.stdvs.squeeze()
    model.set_train_data(X, own, strict=False)
    for each in (model, *model.members.values()):
        assert torch.equal(each.train_inputs[0], X)
        assert_close(users(each, each.train_targets), expected)
    assert torch.equal(model.shares, before)
    model.set_train_data(targets=own + 1.0)
    for each in (model, *model.members.values()):
        moved = users(each, each.train_targets)
        assert_close(moved, expected + transform.stdvs.squeeze())


def test_left_out_predictions_mix_the_members_in_their_units(build):
    model = build()
    noises = []
    for each in (model, *model.members.values()):
        noisy, exact = each.loo_posterior(), each.loo_posterior(observation_noise=False)
        noises.append(noisy.variance - exact.variance)
    expected = torch.tensordot(model.shares, torch.stack(noises[1:]), dims=1)
    assert_close(noises[0], expected)


@pytest.mark.parametrize("keep_transforms", [True, False])
@pytest.mark.parametrize("known_noise", [True, False])
def test_states_of_other_data(build, keep_transforms, known_noise):
    noise = {"train_Yvar": torch.full((6, 1), 2.0).double()} if known_noise else {}
    model, other = build(6, **noise), build(3, **{name: Y[:3] for name, Y in noise.items()})
    before = [each.train_targets.clone() for each in (other, *other.members.values())]
    Yvar = other.likelihood.noise.clone()
    other.load_state_dict(model.state_dict(), keep_transforms=keep_transforms)
    Y = 3.0 * FAMILY.target(3)[1].squeeze(-1) + 20.0
    for each, given, targets in zip(
        (other, *other.members.values()), (model, *model.members.values()), before, strict=True
    ):
        assert torch.equal(each.outcome_transform.stdvs, given.outcome_transform.stdvs)
        if keep_transforms:  # the data are the same as before, in the units of the loaded state
            assert_close(users(each, each.train_targets), Y)
            if known_noise:
                assert_close(each.likelihood.noise, given.likelihood.noise[:3])
        else:
            assert torch.equal(each.train_targets, targets)
    if not keep_transforms:
        assert_close(other.likelihood.noise, Yvar if known_noise else model.likelihood.noise)
    assert_close(other.shares, model.shares)


@pytest.mark.parametrize("n", [0, 4])
def test_all_know_their_raw_inputs_once_they_are_conditioned(n):
    transform = Normalize(2, bounds=torch.tensor([[-1.0, 5.0], [1.0, 9.0]], dtype=torch.double))
    X, Y = FAMILY.target(n)
    raw, new = transform.untransform(X), transform.untransform(FAMILY.inputs(2, seed=9))
    for build in AVERAGES.values():
        model = build(raw, Y, input_transform=transform)
        model.posterior(new)
        conditioned = model.condition_on_observations(new, FAMILY.value(transform(new)))
        before = conditioned.posterior(new).mean
        conditioned.train()
        for each in (conditioned, *conditioned.members.values()):
            assert_close(each.train_inputs[0], torch.cat([raw, new]))
        assert_close(conditioned.posterior(new).mean, before)


def test_without_points_known_noise_is_the_mean_of_the_members_stand_ins(build):
    model = build(0, train_Yvar=torch.empty(0, 1, dtype=torch.double))
    for number, each in enumerate(model.members.values()):
        each.likelihood.stand_in = 0.002 * (number + 1)
    model.update_weights()
    latent, noisy = (model.posterior(TEST_X, observation_noise=noise) for noise in (False, True))
    scales = [each.outcome_transform.stdvs.square() for each in model.members.values()]
    expected = sum(
        share * 0.002 * (number + 1) * scale
        for number, (share, scale) in enumerate(zip(model.shares.tolist(), scales, strict=True))
    )
    assert_close(noisy.variance, latent.variance + expected)


def test_members_of_an_average_have_no_joint_covariance_of_many_points_each(monkeypatch) -> None:
    model = TransferGP(*FAMILY.target(4), SOURCES).eval()
    assert len(model.used_members) > 1
    sizes = []
    getitem = strategy.LargeCovariance._getitem
    monkeypatch.setattr(strategy, "MAX_JOINT_POINTS", 5)
    monkeypatch.setattr("botorch_transfer.gp.posterior.MAX_ELEMENTS", 12)
    monkeypatch.setattr(
        strategy.LargeCovariance,
        "_getitem",
        lambda self, *index: sizes.append(getitem(self, *index).shape) or getitem(self, *index),
    )
    with torch.no_grad():
        model.posterior(FAMILY.inputs(6)).rsample(torch.Size([2]))
    assert {size[-2] for size in sizes} == {3}
