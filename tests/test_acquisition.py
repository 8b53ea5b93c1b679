"""What is suggested before the first outcome, and expected improvement under sharp priors."""

import math

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Log
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from torch.special import log_ndtr

from botorch_transfer import FullyBayesianHyperpriorGP, ScaMLGP, TransferGP, acquisition
from botorch_transfer._botorch import log_ei_helper
from botorch_transfer.acquisition import (
    AveragedImprovement,
    NoiselessFantasies,
    PriorUpperConfidenceBound,
    noisy_improvement,
)
from botorch_transfer.average.transfer import member_shares
from tests.families import ShiftedSines

X = torch.linspace(0, 1, 12, dtype=torch.double).unsqueeze(-1)
NONE = torch.empty(0, 1, dtype=torch.double)
ONE = torch.ones(1, 1, dtype=torch.double)


def prior_model(sign: float = 1.0) -> ScaMLGP:
    return ScaMLGP(NONE, NONE, {"monday": (X, sign * (5 * X).sin())})


def test_weights_are_a_row_for_each_objective():
    model, weights = prior_model(), torch.ones(1, dtype=torch.double)
    for make in (PriorUpperConfidenceBound, lambda m, w: noisy_improvement(m, w, X)):
        with pytest.raises(ValueError, match="with one row for each objective"):
            make(model, weights)


def test_one_objective_is_the_upper_confidence_bound():
    model = prior_model()
    test_X = torch.rand(7, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model, ONE, beta=4.0)
    torch.testing.assert_close(found(test_X), UpperConfidenceBound(model, beta=4.0)(test_X))
    lower = PriorUpperConfidenceBound(model, -ONE, beta=4.0)
    mirrored = UpperConfidenceBound(prior_model(-1.0), beta=4.0)
    torch.testing.assert_close(lower(test_X), mirrored(test_X), atol=1e-4, rtol=1e-4)


def test_the_first_trial_is_where_the_sources_are_best_and_others_spread():
    model, pending = prior_model(), torch.tensor([[0.3]], dtype=torch.double)
    test_X = torch.rand(7, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model)
    torch.testing.assert_close(found(test_X), model.posterior(test_X).mean.view(-1))
    found.set_X_pending(pending)
    expected = PriorUpperConfidenceBound(model, ONE, X_pending=pending, beta=1.0)
    torch.testing.assert_close(found(test_X), expected(test_X))
    found.set_X_pending(pending[:0])
    assert found.X_pending is None
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    options = {"num_restarts": 2, "raw_samples": 32, "sequential": True}
    several, _ = optimize_acqf(found, bounds, q=3, **options)
    assert torch.pdist(several).min() > 0.05
    with pytest.raises(ValueError, match="has 2 outcomes: give objective_weights= with"):
        PriorUpperConfidenceBound(ModelListGP(model, model))


def test_pending_points_shrink_the_deviation_as_conditioning_does():
    model = prior_model()
    pending = torch.tensor([[0.2], [0.7]], dtype=torch.double)
    with_pending = PriorUpperConfidenceBound(model, ONE, X_pending=pending, beta=9.0)
    without = PriorUpperConfidenceBound(model, ONE, beta=9.0)
    test_X = torch.tensor([[[0.2]], [[0.45]], [[0.7001]]], dtype=torch.double)
    posterior = model.posterior(test_X)
    found = (with_pending(test_X) - posterior.mean.view(-1)).square() / 9.0
    joint = model.posterior(torch.cat([pending, test_X.view(3, 1)])).distribution.covariance_matrix
    K, k = joint[:2, :2], joint[2:, :2]
    expected = joint.diagonal()[2:] - (k @ torch.linalg.solve(K, k.T)).diagonal()
    torch.testing.assert_close(found, expected.clamp_min(0), atol=1e-3, rtol=1e-2)
    assert (with_pending(test_X) < without(test_X)).all()


def test_several_objectives_and_constraints():
    models = [SingleTaskGP(X, Y).eval() for Y in (X, X.square(), (3 * X).cos())]
    model = ModelListGP(*models)
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]], dtype=torch.double)
    A, b = torch.tensor([[0.0, 0.0, 2.0]]).double(), torch.tensor([[0.5]]).double()
    test_X = torch.rand(5, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model, weights, (A, b), beta=9.0)(test_X)
    mean = [m.posterior(test_X).mean.view(-1) for m in models]
    std = [m.posterior(test_X).variance.view(-1).sqrt() for m in models]
    bounds = (mean[0] + 3 * std[0] - mean[1] + 3 * std[1]) / 2
    expected = bounds + log_ndtr((0.5 - 2 * mean[2]) / (2 * std[2]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pending", [None, torch.tensor([[0.3]], dtype=torch.double)])
def test_it_has_gradients_and_is_finite(pending):
    acquisition = PriorUpperConfidenceBound(prior_model(), ONE, X_pending=pending, beta=9.0)
    test_X = torch.tensor([[[0.3]], [[0.9]]], dtype=torch.double, requires_grad=True)
    acquisition(test_X).sum().backward()
    assert test_X.grad.isfinite().all()


def test_units_do_not_matter_with_a_scale():
    def bound(unit: float) -> torch.Tensor:
        models = [SingleTaskGP(X, Y, outcome_transform=None).eval() for Y in (X, (3 * X).cos())]
        weights = torch.tensor([[unit, 0.0]], dtype=torch.double)
        A, b = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[0.5]]).double()
        model, given = ModelListGP(*models), (weights, (A, b))
        bound = PriorUpperConfidenceBound(model, *given, beta=9.0, X_reference=X)
        return bound(X.unsqueeze(-2))

    torch.testing.assert_close(bound(1.0), bound(1e4))
    model = prior_model()
    found = PriorUpperConfidenceBound(model, ONE, X_reference=X).scale
    posterior = model.posterior(X.unsqueeze(-2))
    expected = posterior.mean.var(correction=0) + posterior.variance.mean()
    torch.testing.assert_close(found, expected.sqrt().view(1))


@pytest.mark.parametrize("pending", [None, torch.tensor([[0.3]], dtype=torch.double)])
def test_an_ensemble_counts_as_a_mixture(pending):
    model = FullyBayesianHyperpriorGP(NONE, NONE, {"monday": (X, (5 * X).sin())}, num_members=8)
    test_X = torch.rand(5, 1, 1, dtype=torch.double)
    found = PriorUpperConfidenceBound(model, ONE, X_pending=pending, beta=9.0)(test_X)
    assert found.shape == (5,)
    posterior = model.posterior(test_X)
    variance = posterior.mixture_variance.view(-1)
    if pending is not None:
        joint = model.posterior(torch.cat([test_X, pending.expand(5, 1, 1)], dim=-2)).distribution
        (own, cross), (_, inner) = joint.covariance_matrix.permute(2, 3, 0, 1)
        variance = (own - cross.square() / (1.0001 * inner)).mean(dim=-1)
        variance = variance + joint.mean[..., 0].var(dim=-1, correction=0)
    torch.testing.assert_close(found, posterior.mixture_mean.view(-1) + 3 * variance.sqrt())


GENERATOR = torch.Generator().manual_seed(0)
OBSERVED = torch.rand(6, 2, dtype=torch.double, generator=GENERATOR)
TEST_X = torch.rand(9, 1, 2, dtype=torch.double, generator=GENERATOR)
Y = (3 * OBSERVED).sin().sum(-1, keepdim=True)


def noisy_model() -> SingleTaskGP:
    return SingleTaskGP(OBSERVED, Y, torch.full_like(Y, 0.05), outcome_transform=None).eval()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_is_what_samples_estimate(sign):
    model = noisy_model()
    found = noisy_improvement(model, sign * ONE, OBSERVED)
    sampler = SobolQMCNormalSampler(torch.Size([4096]), seed=0)
    transform = ScalarizedPosteriorTransform(sign * ONE[0])
    sampled = qLogNoisyExpectedImprovement(model, OBSERVED, sampler, posterior_transform=transform)
    # Far below the best, samples say little.
    torch.testing.assert_close(found(TEST_X).exp(), sampled(TEST_X).exp(), atol=5e-3, rtol=0.1)


def test_fantasies_are_what_a_model_conditioned_on_them_says():
    model, base = noisy_model(), OBSERVED[:3]
    transform = ScalarizedPosteriorTransform(ONE[0])
    fantasies = NoiselessFantasies(model, base, transform, num_fantasies=4)
    means, variance = fantasies.moments(TEST_X.squeeze(-2))
    for i, outcomes in enumerate(fantasies.outcomes):
        noise = torch.full_like(outcomes, 1e-6).unsqueeze(-1)
        known = model.condition_on_observations(base, outcomes.unsqueeze(-1), noise=noise)
        expected = known.posterior(TEST_X)
        torch.testing.assert_close(means[:, i], expected.mean.flatten(), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(variance, expected.variance.flatten(), atol=1e-3, rtol=1e-3)


def test_candidates_are_evaluated_together_and_do_not_count_for_one_another(monkeypatch):
    model, transform = noisy_model(), ScalarizedPosteriorTransform(ONE[0])
    fantasies = NoiselessFantasies(model, OBSERVED[:3], transform, num_fantasies=4)
    alone = [fantasies.moments(x) for x in TEST_X]
    seen, posterior = [], model.posterior
    monkeypatch.setattr(acquisition, "TOGETHER", 5)
    monkeypatch.setattr(model, "posterior", lambda X, **k: seen.append(len(X)) or posterior(X, **k))
    found = fantasies.moments(TEST_X.squeeze(-2))
    assert seen == [5 + 3, 4 + 3]
    for together, parts in zip(found, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(together, torch.cat(parts))


def test_a_sum_of_outcomes_and_gradients():
    model = ModelListGP(noisy_model(), noisy_model())
    double = noisy_improvement(model, torch.ones(1, 2, dtype=torch.double), OBSERVED)
    test_X = torch.cat([TEST_X, OBSERVED[:1].unsqueeze(0)]).requires_grad_()
    double(test_X).sum().backward()
    assert test_X.grad.isfinite().all()


@pytest.mark.filterwarnings("error:Negative variance")  # next to zero there
def test_nothing_is_to_be_gained_where_the_outcome_is_known():
    model = ScaMLGP(OBSERVED, Y, {"monday": (OBSERVED, Y)}, train_Yvar=torch.full_like(Y, 1e-8))
    found = noisy_improvement(model, ONE, OBSERVED)
    assert found(OBSERVED.unsqueeze(-2)).max() < -6.0


def test_ensembles_are_sampled_instead():
    model = FullyBayesianHyperpriorGP(OBSERVED, Y, {"monday": (OBSERVED, Y)}, num_members=4)
    assert noisy_improvement(model, ONE, OBSERVED) is None


def average(n: int = 4) -> TransferGP:
    history = {"monday": (OBSERVED, Y), "tuesday": (OBSERVED.flip(0), Y + 0.1)}
    return TransferGP(OBSERVED[:n], -Y[:n], history).eval()


def test_an_average_of_improvements_is_what_the_formula_says():
    model, shares = average(), torch.tensor([0.3, 0.0, 0.7]).double()
    improvements = [LogExpectedImprovement(each, best_f=0.5) for each in model.members.values()]
    found = AveragedImprovement(improvements, shares, OBSERVED)(TEST_X)
    expected = torch.zeros(9, dtype=torch.double)
    for improvement, share in zip(improvements, shares, strict=True):
        largest = max(float(improvement(x.view(1, 1, 2)).detach().exp()) for x in OBSERVED)
        expected = expected + share * improvement(TEST_X).detach().exp() / largest
    torch.testing.assert_close(found.exp().detach(), expected)
    # Whoever expects a thousandth of the others counts the same.
    improvements[2].best_f = improvements[2].best_f + 3.0
    assert improvements[2](TEST_X).max() < -4.0
    found = AveragedImprovement(improvements, shares, TEST_X.squeeze(-2))(TEST_X)
    assert 0.7 - 1e-9 <= float(found.exp().max()) <= 1.0 + 1e-9


def test_a_model_without_a_share_is_not_asked():
    model = average()
    improvements = [LogExpectedImprovement(each, best_f=0.5) for each in model.members.values()]
    found = AveragedImprovement(improvements, torch.tensor([0.5, 0.0, 0.5]), OBSERVED)
    assert list(found.acquisitions) == [improvements[0], improvements[2]]


def test_improvements_are_averaged_over_the_models_of_an_average():
    model, points = average(), TEST_X.squeeze(-2)
    found = noisy_improvement(model, ONE, OBSERVED[:4], seed=3, X_reference=points)
    each = [noisy_improvement(part, ONE, OBSERVED[:4], seed=3) for part in model.members.values()]
    reference = torch.cat([points, OBSERVED[:4]])
    expected = AveragedImprovement(each, model.improvement_shares, reference)
    torch.testing.assert_close(found(TEST_X), expected(TEST_X))
    # Without a sample of the space, it is the improvement under their average.
    assert isinstance(noisy_improvement(model, ONE, OBSERVED[:4]), LogExpectedImprovement)
    single = noisy_improvement(noisy_model(), ONE, OBSERVED, X_reference=points)
    assert isinstance(single, LogExpectedImprovement)
    assert torch.equal(single(TEST_X), noisy_improvement(noisy_model(), ONE, OBSERVED)(TEST_X))


def test_where_less_is_better_the_lowest_outcome_is_the_last_improvement():
    model, points = average(), TEST_X.squeeze(-2)
    found = noisy_improvement(model, -ONE, OBSERVED[:4], seed=3, X_reference=points)
    shares = member_shares(-model.train_targets, 3)
    assert not torch.equal(shares, model.improvement_shares)
    each = [noisy_improvement(part, -ONE, OBSERVED[:4], seed=3) for part in model.members.values()]
    expected = AveragedImprovement(each, shares, torch.cat([points, OBSERVED[:4]]))
    torch.testing.assert_close(found(TEST_X), expected(TEST_X))


def test_improvements_have_the_gradient_of_botorchs_formula():
    gap = torch.tensor([-1e9, -1e7, -2e3, -60.0, -3.0, -0.9, 0.0, 0.4, 8.0, 1e3, -1.0]).double()
    variance = torch.tensor([1.0] * 5 + [0.3, 0.01, 2.0, 1.0, 4.0, 1e-14]).double()
    inputs = gap.requires_grad_(), variance.requires_grad_()
    sigma = variance.clamp_min(acquisition.MIN_VARIANCE).sqrt()
    expected = log_ei_helper(gap / sigma) + sigma.log()
    found = acquisition._LogImprovements.apply(*inputs)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(value.sum(), inputs) for value in (found, expected))
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-12)
    near = tuple(part.detach()[3:9].requires_grad_() for part in inputs)
    assert torch.autograd.gradgradcheck(acquisition._LogImprovements.apply, near)


def test_an_average_of_improvements_has_gradients():
    found = noisy_improvement(average(), ONE, OBSERVED[:4], X_reference=TEST_X.squeeze(-2))
    test_X = TEST_X.clone().requires_grad_()
    assert torch.autograd.gradcheck(found, test_X, atol=1e-3, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize(("below", "has_gradient"), [(100.0, True), (720.0, False)])
def test_what_adds_nothing_to_an_average_has_no_subnormal_gradient(below, has_gradient):
    model = average()
    members = list(model.members.values())[1:]
    improvements = [LogExpectedImprovement(each, best_f=0.5) for each in members]
    found = AveragedImprovement(improvements, torch.full((2,), 0.5).double(), OBSERVED)
    level = torch.tensor([0.0, -below], dtype=torch.double, requires_grad=True)
    found._offsets = level - torch.stack([each(TEST_X[:1]).detach()[0] for each in improvements])
    (gradient,) = torch.autograd.grad(found(TEST_X[:1]).sum(), level)
    assert (float(gradient[1]) > 0) == has_gradient
    torch.testing.assert_close(gradient[0], torch.ones_like(gradient[0]))


def test_all_models_of_an_average_know_what_is_pending():
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    sampled = [qLogExpectedImprovement(each, 0.5, sampler) for each in average().members.values()]
    shares = torch.full((3,), 1 / 3, dtype=torch.double)
    together = AveragedImprovement(sampled, shares, OBSERVED)
    alone = together(TEST_X)
    together.set_X_pending(TEST_X[0])
    assert all(torch.equal(each.X_pending, TEST_X[0]) for each in sampled)
    pairs = torch.cat([TEST_X, TEST_X[:1].expand_as(TEST_X)], dim=-2)
    beside = together(TEST_X[1:])
    together.set_X_pending(None)
    torch.testing.assert_close(beside, together(pairs[1:]))
    torch.testing.assert_close(together(TEST_X), alone)


@pytest.mark.parametrize("model", [noisy_model(), ModelListGP(noisy_model(), noisy_model())])
def test_a_noisy_improvement_counts_pending_inputs_as_observed_ones(model):
    weights = torch.ones(1, model.num_outputs, dtype=torch.double)
    found = noisy_improvement(model, weights, OBSERVED[:3], seed=2)
    alone = found(TEST_X)
    found.set_X_pending(OBSERVED[3:])
    expected = noisy_improvement(model, weights, OBSERVED, seed=2)
    assert torch.equal(found(TEST_X), expected(TEST_X))
    assert not torch.allclose(found(TEST_X), alone)
    found.set_X_pending(None)
    assert torch.equal(found(TEST_X), alone)


def test_an_average_knows_what_is_pending():
    model = average()
    found = AveragedImprovement.from_model(model, -100.0, OBSERVED)
    assert found.X_pending is None
    alone = found(TEST_X)
    found.set_X_pending(OBSERVED[:4])
    # Conditioned on each draw of the outcomes, and averaged over the draws; its unit stays.
    for improvement, part in zip(found.acquisitions, model.members.values(), strict=True):
        outcomes = improvement.fantasies.outcomes
        drawn = part.posterior(OBSERVED[:4]).sample(torch.Size([4096])).squeeze(-1)
        assert (outcomes.mean(dim=0) - drawn.mean(dim=0)).abs().max() < 0.2 * drawn.std()
        fantasies = NoiselessFantasies(part, OBSERVED[:4])
        means, variance = fantasies.moments(TEST_X.squeeze(-2))
        normal = torch.distributions.Normal(means, variance.sqrt().unsqueeze(-1))
        gain = normal.mean - outcomes.amax(dim=-1)
        u = gain / normal.stddev
        standard = torch.distributions.Normal(0.0, 1.0)
        density = standard.log_prob(u).exp()
        expected = (gain * standard.cdf(u) + normal.stddev * density).mean(dim=-1)
        torch.testing.assert_close(improvement(TEST_X).exp(), expected)
    found.set_X_pending(None)
    assert torch.equal(found(TEST_X), alone)
    # Nothing is pending that could be better than the best value so far.
    found = AveragedImprovement.from_model(model, 100.0, OBSERVED)
    found.set_X_pending(OBSERVED[:4])
    assert all(torch.all(each.fantasies.best < each.best_f) for each in found.acquisitions)


@pytest.mark.parametrize("sampled", [False, True])
def test_candidates_of_an_average_one_after_the_other(sampled):
    model, bounds = average(), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    found = AveragedImprovement.from_model(model, model.train_targets.max(), OBSERVED)
    if sampled:
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
        each = [qLogExpectedImprovement(part, 0.5, sampler) for part in model.members.values()]
        found = AveragedImprovement(each, model.improvement_shares, OBSERVED)
    options = {"num_restarts": 2, "raw_samples": 32, "sequential": True}
    X, _ = optimize_acqf(found, bounds, q=3, **options)
    assert X.shape == (3, 2)
    assert torch.pdist(X).min() > 0.05
    assert found.X_pending is None
    each = [LogExpectedImprovement(part, 0.5) for part in model.members.values()]
    improvement = AveragedImprovement(each, model.improvement_shares, OBSERVED)
    with pytest.raises(UnsupportedError, match="do not account for X_pending"):
        optimize_acqf(improvement, bounds, q=2, **options)


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(ValueError, match="TransferGP, but the model is a SingleTaskGP: use LogExp"):
        AveragedImprovement.from_model(SingleTaskGP(OBSERVED, Y), 0.5, OBSERVED)
    with pytest.raises(ValueError, match="which is not finite: give a finite number, or"):
        AveragedImprovement.from_model(average(0), -torch.inf, OBSERVED)
    found = AveragedImprovement.from_model(average(), 0.5, OBSERVED)
    with pytest.raises(UnsupportedError, match="X has 2 candidates, but this acquisition function"):
        found(TEST_X.expand(9, 2, 2))


# ---------------------------------------------------------------------------- beyond the sources


def test_what_lies_beyond_the_sources_counts_less():
    """By formulas; the sources end at 0.7 of the second input."""
    family = ShiftedSines()
    inside = torch.tensor([0.97, 0.7], dtype=torch.double)  # 0.97 is close to the side
    sources = {}
    for seed in range(3):
        X = inside * family.inputs(20, seed=seed)
        X[:2] = torch.stack([inside, 0.03 * inside])
        sources[f"task {seed}"] = (10 * X, family.value(X, 0.1 * seed))
    X = torch.tensor([[0.5, 0.3], [0.2, 0.6], [0.9, 0.1]], dtype=torch.double)
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [10.0, 10.0]]).double())
    model = TransferGP(10 * X, family.value(X), sources, input_transform=transform)
    unbounded = torch.tensor([[-math.inf] * 2, [math.inf, 0.7]], dtype=torch.double)
    torch.testing.assert_close(model.source_range(), unbounded)
    shares = torch.tensor([0.6, 0.2, 0.2], dtype=torch.double)
    model.improvement_shares.data = shares
    found = AveragedImprovement.from_model(model, 40.0, 10 * X)
    each = [LogExpectedImprovement(member, best_f=40.0) for member in model.members.values()]
    everywhere = AveragedImprovement(each, shares, 10 * X)
    tested = torch.tensor([[[4.0, 6.5]], [[10.0, 7.25]], [[0.0, 10.0]]], dtype=torch.double)
    discount = torch.tensor([0.0, 0.5, 1.0], dtype=torch.double) * math.log(1 / 3)
    torch.testing.assert_close(found(tested), everywhere(tested) + discount)
    model.improvement_shares.data = torch.full_like(shares, 1 / 3)  # no improvement for long
    later = AveragedImprovement.from_model(model, 40.0, 10 * X)
    evenly = AveragedImprovement(each, model.improvement_shares, 10 * X)
    torch.testing.assert_close(later(tested), evenly(tested))


def test_improvements_are_those_of_gaussian_posteriors():
    """Others are left to BoTorch's acquisitions."""
    history, weights = {"monday": (X, (5 * X).sin().exp())}, torch.ones(1, 1, dtype=torch.double)
    for model_class, reference in ((ScaMLGP, None), (TransferGP, X)):
        model = model_class(X[:4], X[:4].exp(), history, outcome_transform=Log())
        assert noisy_improvement(model, weights, X[:4], X_reference=reference) is None


def test_shares_of_other_acquisitions_are_refused():
    improvement = UpperConfidenceBound(prior_model(), beta=4.0)
    with pytest.raises(ValueError, match="acquisitions= has 1 functions: give one share"):
        AveragedImprovement([improvement], torch.ones(2).double(), X)
