from functools import cache

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import MaternKernel, PeriodicKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood

from botorch_transfer import PopulationGP, SourcePopulation
from botorch_transfer.gp.expansion import expand
from botorch_transfer.population import model as module
from tests.fits import fit_model as fit
from tests.gp.drawn_functions import assert_moments
from tests.gp.padded import points
from tests.hierarchy.twin import moments_and_gradient, predict
from tests.models.contract import assert_same_posterior
from tests.population.twin import twin_of

TEST_X = points(4, 2, seed=7)


def task(n: int, index: int, known_noise: bool = False, scale: float = 3.0):
    X = points(n, 2, seed=10 + index)
    Y = 20 + scale * torch.sin(4 * X.sum(dim=-1, keepdim=True) + 0.3 * index) + index
    return (X, Y, 0.05 + points(n, 1, seed=50 + index)) if known_noise else (X, Y)


def repeated(index: int):
    X, Y = task(4, index)
    return X.repeat(2, 1), torch.cat([Y, Y + 0.1])


HISTORIES = {
    "one source": [task(8, 0)],
    "ragged": [task(9, 0), task(1, 1), task(4, 2, scale=6.0)],
    "known noise of some": [task(6, 0, known_noise=True), task(7, 1)],
    "repeated points": [repeated(0), task(5, 1)],
}


@cache
def prior_of(name: str, kernel: str = "matern52") -> SourcePopulation:
    return SourcePopulation.fit(HISTORIES[name], kernel=kernel, max_iter=12)


PRIOR = prior_of("ragged")


def target(n: int, scale: float = 4.0):
    X, Y = task(n, 5, scale=scale)
    return X, Y


#: Histories, numbers of target points, and whether their noise is known.
CASES = [
    ("one source", 7, True),
    ("ragged", 0, False),
    ("ragged", 7, False),
    ("known noise of some", 1, False),
    ("known noise of some", 2, True),
    ("repeated points", 7, False),
]


@pytest.mark.parametrize(("name", "n", "known_noise"), CASES)
def test_equals_the_joint_gp(name, n, known_noise):
    prior, (X, Y) = prior_of(name, "rbf"), target(n)
    Yvar = 0.1 + points(n, 1, seed=4) if known_noise else None
    model = PopulationGP(X, Y, prior, train_Yvar=Yvar)
    twin = twin_of(prior, HISTORIES[name], X, Y, Yvar)
    for mine, theirs in zip(
        moments_and_gradient(predict(model), TEST_X),
        moments_and_gradient(twin.posterior, TEST_X),
        strict=True,
    ):
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6 * scale)
    if not known_noise:
        noisy, plain = (model.posterior(TEST_X, observation_noise=o) for o in (True, False))
        added = (noisy.variance - plain.variance).squeeze(-1)
        expected = twin.predictive_noise().detach().expand(4)
        torch.testing.assert_close(added.detach(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "n"), [("ragged", 0), ("known noise of some", 3)])
def test_equals_the_joint_gp_of_matern_kernels(name, n):
    prior, (X, Y) = prior_of(name), target(n)
    mean, covariance = predict(PopulationGP(X, Y, prior))(TEST_X)
    expected = twin_of(prior, HISTORIES[name], X, Y).posterior(TEST_X)
    torch.testing.assert_close(mean, expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(covariance, expected[1], rtol=1e-6, atol=1e-6)


def test_scale_is_learned_from_the_target():
    """And by one number only: nothing is fitted."""
    wide, narrow = (PopulationGP(*target(7, scale), PRIOR).scale.mean for scale in (9.0, 1.0))
    before = PopulationGP(*target(0), PRIOR).scale
    assert narrow < 1 < wide
    after = PopulationGP(*target(7), PRIOR).scale
    assert after.variance < before.variance
    assert not any(p.requires_grad for p in PopulationGP(*target(3), PRIOR).parameters())


def test_a_level_far_from_the_sources():
    X, Y = target(5)
    near, far = PopulationGP(X, Y, PRIOR), PopulationGP(X, Y + 40, PRIOR)
    assert near.scale.level_variance == pytest.approx(PRIOR.level_variance)
    assert far.scale.level_variance > 20 * near.scale.level_variance
    far_X, far_Y = target(40)
    assert (far.posterior(far_X).mean - (far_Y + 40)).abs().mean() < 4
    expected, _ = twin_of(PRIOR, HISTORIES["ragged"], X, Y + 40).posterior(TEST_X)
    torch.testing.assert_close(predict(far)(TEST_X)[0], expected, rtol=1e-6, atol=1e-6)


def test_a_target_that_is_the_opposite_of_its_sources():
    prior = SourcePopulation.fit([task(20, index) for index in range(4)])
    X, Y = target(10)
    model = PopulationGP(X, 40 - Y, prior)
    assert model.scale.mean < 0 < PopulationGP(X, Y, prior).scale.mean
    far_X, far_Y = target(40)
    assert (model.posterior(far_X).mean - (40 - far_Y)).abs().mean() < 0.5 * far_Y.std()


@pytest.mark.parametrize("num_sources", [2, 3, 5])
def test_few_smooth_sources_do_not_leave_the_level_unknown(num_sources):
    def bowl(n: int, index: int):
        X, optimum = points(n, 2, seed=10 + index), 0.3 + 0.4 * points(2, seed=30 + index)
        return X, 30 * (X - optimum).square().sum(dim=-1, keepdim=True)

    sources = [bowl(15, index) for index in range(num_sources)]
    model = PopulationGP(*bowl(0, 9), SourcePopulation.fit(sources))
    outcomes = torch.cat([Y for _, Y in sources])
    far_X, far_Y = bowl(200, 9)
    posterior = model.posterior(far_X)
    error, stdv = posterior.mean - far_Y, posterior.variance.sqrt()
    assert error.abs().mean() < 1.2 * outcomes.std()
    assert stdv.mean() < 3 * outcomes.std()
    assert (error / stdv).square().mean().sqrt() < 2


# ----------------------------------------------------------------------------- frozen between fits


def test_moments_are_frozen_between_fits():
    X, Y = target(6)
    model = PopulationGP(X[:3], Y[:3], PRIOR)
    before = model.scale.moments.clone()
    model.posterior(TEST_X)
    conditioned = model.condition_on_observations(X[3:], Y[3:])
    assert torch.equal(conditioned.scale.moments, before)
    rebuilt = PopulationGP(X, Y, PRIOR)
    assert not torch.allclose(rebuilt.scale.moments, before)
    rebuilt.scale.moments.data = before
    rebuilt.likelihood.load_state_dict(model.likelihood.state_dict())
    assert_same_posterior(conditioned.posterior(TEST_X), rebuilt.posterior(TEST_X))
    fit(rebuilt)
    assert torch.equal(rebuilt.scale.moments, PopulationGP(X, Y, PRIOR).scale.moments)


# ---------------------------------------------------------------------------------- other units


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e12])
def test_targets_in_larger_units(factor):
    X, Y = target(8)
    outcomes = 20 + factor * (Y - 20)
    model = PopulationGP(X, outcomes, PRIOR)
    far_X, far_Y = target(60)
    posterior = model.posterior(far_X)
    z = (20 + factor * (far_Y - 20) - posterior.mean) / posterior.variance.sqrt()
    assert 0.1 < z.square().mean().sqrt() < 3
    assert (posterior.mean - outcomes.mean()).abs().max() < 5 * outcomes.std()
    assert model.scale.level_variance > PRIOR.level_variance


def test_variances_of_scales_are_not_negative():
    """Where a single scale has all the weight, rounding decides."""
    prior = SourcePopulation.fit([task(12, i, scale=3.0 * 10 ** (i - 1)) for i in range(3)])
    X, Y = target(60)
    for factor in torch.logspace(3, 8, 20).tolist():
        assert PopulationGP(X, 20 + factor * (Y - 20), prior).scale.variance >= 0


def test_units_are_those_of_the_sources_within_the_scales():
    """Nothing jumps where a target's spread leaves them."""
    X, Y = target(6)
    largest = torch.exp(torch.tensor(2.5 * PRIOR.scale_log_std).double()) * PRIOR.typical_scale

    def unit(factor):
        spread = (Y - Y.mean()) / Y.std() * largest * factor
        model = PopulationGP(X, 20 + spread, PRIOR)
        return (model.scale.level_variance / PRIOR.level_variance).sqrt()

    assert unit(0.1) == unit(0.999) == 1
    torch.testing.assert_close(unit(1.001), torch.tensor(1.001).double())
    torch.testing.assert_close(unit(50.0), torch.tensor(50.0).double())


def test_two_points_do_not_say_what_the_units_are():
    X, Y = target(2)
    model = PopulationGP(X, 20 + 1e6 * (Y - 20), PRIOR)
    largest = torch.exp(torch.tensor(2.5 * PRIOR.scale_log_std).double())
    assert model.scale.mean_square <= largest.square() * (1 + 1e-9)
    assert model.posterior(TEST_X).mean.isfinite().all()


@pytest.mark.filterwarnings("ignore:A not p.d.")  # eighteen digits between the sources' units
def test_noise_stays_within_its_bounds():
    """Whatever the spread of the sources' units."""
    data = [task(6, 0, scale=1e-9), task(6, 1, scale=1e9)]
    for n in (0, 3):
        model = PopulationGP(*target(n, 1e-9), data)
        assert model.likelihood.noise.isfinite().all()
        assert model.posterior(TEST_X).mean.isfinite().all()


def test_breakdowns_leave_the_scales_as_they_are(monkeypatch):
    before = PopulationGP(*target(0), PRIOR).scale
    monkeypatch.setattr(module, "cholesky_or_nan", lambda K: torch.full_like(K, torch.nan))
    after = PopulationGP(*target(4), PRIOR).scale
    assert after.moments.isfinite().all()
    torch.testing.assert_close(after.level_variance, before.level_variance)


# --------------------------------------------------------------------------- what may be fitted


def test_residual_has_the_sources_values():
    own = PRIOR.hyperparameters
    kernel = PopulationGP(*target(4), PRIOR).residual_covar_module
    torch.testing.assert_close(kernel.base_kernel.lengthscale[0], own.own_lengthscale)
    torch.testing.assert_close(kernel.outputscale, own.own_outputscale)
    assert not any(p.requires_grad for p in kernel.parameters())


def test_a_kernel_that_is_given_is_fitted():
    base = MaternKernel(nu=2.5, ard_num_dims=2)
    model = PopulationGP(*target(6), PRIOR, covar_module=ScaleKernel(base))
    before = model.residual_covar_module.outputscale.clone()
    fit(model, num_restarts=0)
    assert not torch.equal(before, model.residual_covar_module.outputscale)


def test_a_likelihood_that_is_given_is_fitted():
    model = PopulationGP(*target(6), PRIOR, likelihood=GaussianLikelihood())
    before = model.likelihood.noise.clone()
    model.update_scale()
    assert torch.equal(before, model.likelihood.noise)
    fit(model, num_restarts=0)
    assert not torch.equal(before, model.likelihood.noise)


# --------------------------------------------------------------------------- what it is good for


def test_few_points_are_enough():
    """Better than a plain GP on the same points, and honest about its errors."""
    data = [task(20, index) for index in range(4)]
    prior = SourcePopulation.fit(data)
    X, Y = task(3, 2, scale=5.0)
    far_X, far_Y = points(100, 2, seed=90), None
    far_Y = 20 + 5.0 * torch.sin(4 * far_X.sum(dim=-1, keepdim=True) + 0.6) + 2
    ours, plain = PopulationGP(X, Y, prior), SingleTaskGP(X, Y)
    errors = [(each.posterior(far_X).mean - far_Y).square().mean() for each in (ours, plain)]
    assert errors[0] < 0.2 * errors[1]
    posterior = ours.posterior(far_X)
    z = (posterior.mean - far_Y) / posterior.variance.sqrt()
    assert z.square().mean().sqrt() < 2


# -------------------------------------------------------------------------------- drawn functions


@pytest.mark.parametrize("known_noise", [False, True])
def test_functions_drawn_without_points_have_a_random_scale_and_level(known_noise):
    X, Y = target(0)
    prior = prior_of("ragged", "rbf")
    model = PopulationGP(X, Y, prior, train_Yvar=0 * Y + 0.1 if known_noise else None)
    torch.manual_seed(0)
    paths = draw_matheron_paths(model, torch.Size([2000]))
    with torch.no_grad():
        assert_moments(paths(TEST_X), model.posterior(TEST_X), tolerance=0.1)


def test_drawn_levels_and_scales():
    model = PopulationGP(*target(0), PRIOR)
    torch.manual_seed(0)
    path = model.covar_module.draw(torch.Size([8000]), torch.Size(), 64)["mean"]
    mean, scale = model.covar_module.common(TEST_X), model.scale
    values = path(TEST_X)
    expected = scale.variance * torch.outer(mean, mean) + scale.level_variance
    torch.testing.assert_close(values.mean(dim=0), 0 * mean, atol=0.05, rtol=0)
    torch.testing.assert_close(torch.cov(values.mT), expected, atol=0, rtol=0.05)


# ------------------------------------------------------------------------------------- refusals


def test_parts_of_other_sources_and_of_other_kernels_are_not_known():
    model = PopulationGP(*target(3), PRIOR, covar_module=PeriodicKernel().double())
    assert expand(model.mean_module, model.covar_module, TEST_X) is None
    assert not model.source_parts(TEST_X, ["another"]).any()
