import math
from functools import partial

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel
from linear_operator import to_linear_operator

from botorch_transfer import (
    BoostedHierarchicalGP,
    GuardedTransferGP,
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    MeanHierarchicalGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourceHierarchy,
    TwoStageTransferGP,
)
from botorch_transfer.average import guarded
from botorch_transfer.average.guarded import (
    leave_one_out_evidence,
    prior_evidence,
    weight_of_evidence,
)
from botorch_transfer.joint.models import JointTransferGP
from tests.families import ShiftedSines
from tests.fits import fit_model
from tests.gp.padded import points
from tests.models.contract import copy_hyperparameters

FAMILY = ShiftedSines()

PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)

TEST_X = FAMILY.inputs(2, 4, seed=5)

TRANSFER_MODELS = [
    ScaMLGP,
    MeanHierarchicalGP,
    SequentialHierarchicalGP,
    BoostedHierarchicalGP,
    RankWeightedGP,
    TwoStageTransferGP,
    JointScaMLGP,
    JointHierarchicalGP,
    IntrinsicCoregionalizationGP,
]


fit = partial(fit_model, num_restarts=0, max_iter=15)


@pytest.mark.parametrize("transfer_model", TRANSFER_MODELS)
def test_posterior_by_the_formula(transfer_model):
    X, Y = FAMILY.target(4)
    model = fit(GuardedTransferGP(X, Y, FAMILY.sources(), transfer_model=transfer_model))
    model.transfer_weight.data.fill_(0.3)
    transfer, plain = model.transfer.posterior(TEST_X), model.plain.posterior(TEST_X)
    posterior = model.posterior(TEST_X)
    assert isinstance(model.transfer, transfer_model)
    assert (model.prior is None) == issubclass(transfer_model, JointTransferGP)
    mean = 0.3 * transfer.mean + 0.7 * plain.mean
    torch.testing.assert_close(posterior.mean, mean)
    apart = transfer.mean - plain.mean
    covariance = 0.3 * transfer.distribution.covariance_matrix
    covariance = covariance + 0.7 * plain.distribution.covariance_matrix
    covariance = covariance + 0.21 * apart @ apart.mT
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance)
    assert model.loo_posterior().mean.shape == (4, 1, 1)
    X = FAMILY.inputs(2, seed=3)
    near = model.condition_on_observations(X, FAMILY.value(X)).posterior(X)
    assert (near.variance < model.posterior(X).variance).all()
    nothing = GuardedTransferGP(X[:0], Y[:0], FAMILY.sources(), transfer_model=transfer_model)
    assert fit(nothing).posterior(TEST_X).mean.isfinite().all()


def test_is_the_transfer_model_without_points():
    model, transfer = (build(*FAMILY.target(0), PRIOR) for build in (GuardedTransferGP, ScaMLGP))
    assert model.transfer_weight == 1
    assert torch.equal(model.posterior(TEST_X).mean, transfer.posterior(TEST_X).mean)
    assert torch.equal(model.posterior(TEST_X).variance, transfer.posterior(TEST_X).variance)
    assert model.evidence() == 0


def _at_odds():
    """Source tasks of which each other one is the opposite of the target."""
    A = FAMILY.inputs(15, seed=3)
    return {f"{sign} {i}": (A, sign * FAMILY.value(A)) for i in range(3) for sign in (1, -1)}


def test_without_points_a_history_at_odds_with_itself_is_not_followed(monkeypatch):
    prior = SourceGPs.fit(_at_odds(), num_restarts=0)
    X, Y = FAMILY.target(0)
    model = fit(GuardedTransferGP(X, Y, prior))
    assert model.transfer_weight == 0
    posterior = model.posterior(TEST_X)
    torch.testing.assert_close(posterior.mean, model.plain.posterior(TEST_X).mean)
    assert posterior.mean.std() < 1e-6
    assert (posterior.variance > 0).all()
    with monkeypatch.context() as patched:
        patched.setattr(guarded, "AGREEMENT", -torch.inf)
        assert GuardedTransferGP(X, Y, prior).transfer_weight == 1
    # One point is evidence, and all that counts from then on.
    assert GuardedTransferGP(*FAMILY.target(1), prior).transfer_weight > 0
    near = model.condition_on_observations(*FAMILY.target(2))
    assert near.posterior(TEST_X).mean.std() > 1e-3


def test_without_points_other_priors_are_followed():
    history = SourceHierarchy.fit(_at_odds(), propagate="covariance", num_restarts=0)
    for transfer_model, prior in (
        (SequentialHierarchicalGP, history),
        (JointScaMLGP, FAMILY.sources()),
    ):
        model = GuardedTransferGP(*FAMILY.target(0), prior, transfer_model=transfer_model)
        assert model.transfer_weight == 1


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_whole_weights_select(weight):
    X, Y = FAMILY.target(4)
    model = fit(GuardedTransferGP(X, Y, PRIOR))
    model.transfer_weight.data.fill_(weight)
    chosen = model.transfer if weight else model.plain
    torch.testing.assert_close(model.posterior(TEST_X).mean, chosen.posterior(TEST_X).mean)
    model.condition_on_observations(TEST_X[0], FAMILY.value(TEST_X[0]))


@pytest.mark.parametrize("known_noise", [False, True])
def test_evidence_by_refits(known_noise):
    X, Y = FAMILY.target(5)
    Yvar = torch.full_like(Y, 0.4) if known_noise else None
    model = fit(GuardedTransferGP(X, Y, PRIOR, Yvar))
    y, noise = model.train_targets, model.plain.likelihood.noise.expand(5)
    expected = 0.0
    for i in range(5):
        keep = torch.arange(5) != i
        rest = noise[keep].unsqueeze(-1) if known_noise else None
        own = GuardedTransferGP(X[keep], y[keep].unsqueeze(-1), PRIOR, rest, outcome_transform=None)
        copy_hyperparameters(model, own)
        own.eval()
        transfer, plain = own.transfer.posterior(X[[i]]), own.plain.posterior(X[[i]])
        for sign, mean, variance in (
            (1, transfer.mean, transfer.variance),
            (-1, plain.mean, plain.variance),
        ):
            normal = torch.distributions.Normal(mean, (variance + noise[i]).sqrt())
            expected = expected + sign * normal.log_prob(y[i]).sum()
    torch.testing.assert_close(model.evidence(), expected)
    torch.testing.assert_close(model.transfer_weight.data, weight_of_evidence(expected).detach())


@pytest.mark.parametrize("n", [1, 2])
def test_evidence_of_few_points_is_that_before_the_fit(n, monkeypatch):
    X, Y = FAMILY.target(n)
    fresh = GuardedTransferGP(X, Y, PRIOR)
    before = fresh.evidence()
    fitted = fit(fresh)
    torch.testing.assert_close(fitted.evidence(), before)
    monkeypatch.setattr(guarded, "BLIND_POINTS", 0)
    assert not torch.equal(GuardedTransferGP(X, Y, PRIOR).evidence(), before)


def _weight(sign: float, n: int) -> float:
    A = FAMILY.inputs(25, seed=3)
    history = {f"{shift}": (A, sign * FAMILY.value(A, shift)) for shift in (0.05, 0.1)}
    model = GuardedTransferGP(*FAMILY.target(n), SourceGPs.fit(history, num_restarts=0))
    return float(fit(model).transfer_weight)


@pytest.mark.parametrize("n", [2, 8])
def test_good_history_keeps_its_weight(n):
    assert _weight(1.0, n) > 0.8


def test_misleading_history_loses_its_weight():
    assert _weight(-1.0, 2) < 0.5


def test_options_of_the_transfer_model():
    X, Y = FAMILY.target(3)
    options = {"deviation_weight": 2.0}
    model = GuardedTransferGP(
        X, Y, FAMILY.sources(), transfer_model=MeanHierarchicalGP, transfer_options=options
    )
    assert model.transfer.deviation_weight == 2.0
    with pytest.raises(ValueError, match="ScaMLGP has no option 'deviation_weight'"):
        GuardedTransferGP(X, Y, PRIOR, transfer_options=options)
    kernel = MaternKernel(ard_num_dims=2)
    with pytest.raises(ValueError, match="JointScaMLGP has no option 'covar_module'"):
        GuardedTransferGP(X, Y, FAMILY.sources(), covar_module=kernel, transfer_model=JointScaMLGP)


def test_a_mixture_is_refused():
    class Ensemble(ScaMLGP):
        _is_ensemble = True

    with pytest.raises(ValueError, match="Ensemble predicts a mixture"):
        GuardedTransferGP(*FAMILY.target(3), PRIOR, transfer_model=Ensemble)


def test_weight_of_evidence():
    evidence = torch.tensor([-4.0, 0.0, 3.0], dtype=torch.double)
    odds = [4 * math.exp(0.3 * value) for value in evidence.tolist()]
    expected = torch.tensor([odd / (1 + odd) for odd in odds], dtype=torch.double)
    torch.testing.assert_close(weight_of_evidence(evidence), expected)
    extreme = weight_of_evidence(torch.tensor([-1e9, 1e9]))
    assert extreme.tolist() == [0.0, 1.0]


def test_leave_one_out_evidence_by_formulas():
    Y, noise = points(2, 4, seed=0), 0.1 + points(2, 4, seed=1)
    left, right = ((points(2, 4, seed=s), points(2, 4, seed=s + 1)) for s in (2, 4))
    right = (right[0], right[1] - 0.99)  # rounding may make variances negative
    expected = torch.zeros(2, dtype=torch.double)
    for b in range(2):
        for i in range(4):
            for sign, (mean, variance) in ((1, left), (-1, right)):
                total = max(variance[b, i], 0.0) + noise[b, i]
                square = (Y[b, i] - mean[b, i]) ** 2 / total
                expected[b] += sign * (-0.5 * square - 0.5 * math.log(2 * math.pi * total))
    torch.testing.assert_close(leave_one_out_evidence(Y, left, right, noise), expected)


def test_prior_evidence_by_formulas():
    Y, noise = points(3, seed=0), 0.1 + points(3, seed=1)
    priors = []
    for seed in (2, 3):
        half = points(3, 3, seed=seed)
        priors.append(MultivariateNormal(points(3, seed=seed + 5), half @ half.mT))
    densities = []
    for prior in priors:
        covariance = prior.covariance_matrix + torch.ones(3, 3) + noise.diag()
        joint = torch.distributions.MultivariateNormal(prior.mean, covariance)
        densities.append(joint.log_prob(Y))
    evidence = prior_evidence(Y, *priors, noise)
    torch.testing.assert_close(evidence, densities[0] - densities[1], rtol=1e-4, atol=1e-4)


def test_singular_priors():
    zero = to_linear_operator(torch.zeros(2, 2).double())
    prior = MultivariateNormal(torch.zeros(2).double(), zero)
    noise = torch.zeros(2).double()
    assert prior_evidence(torch.ones(2).double(), prior, prior, noise) == 0
