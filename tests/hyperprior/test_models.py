"""MPHD's model: what its hyperpriors are, and how it is fitted."""

from functools import partial

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior

from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior, HyperpriorGP
from botorch_transfer.data import Domain, default_context
from botorch_transfer.gp.hyperpriors import LogDensityGammaPrior, start_and_bounds
from botorch_transfer.hyperprior.models import hyperprior_kernel, hyperprior_mean, hyperprior_noise
from botorch_transfer.pretraining import NetworkOptions
from tests import members
from tests.families import ShiftedSines
from tests.fits import fit_model as fit
from tests.fits import log_posterior
from tests.hyperprior import hyperpriors
from tests.hyperprior.domains import draw_domain, draw_domains


def specified(**options) -> Hyperprior:
    priors = {"constant": NormalPrior(2.0, 0.5), "outputscale": GammaPrior(2.0, 4.0)}
    return members.hyperprior(**{**priors, **options})


@pytest.fixture(scope="module")
def mphd() -> Hyperprior:
    network = NetworkOptions(num_steps=50, learning_rate=0.05)
    return Hyperprior.fit(draw_domains(), num_restarts=0, network=network)


def data(n: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    family = ShiftedSines(dim)
    return family.target(n, seed=seed)


# ------------------------------------------------------------------------------------- hyperpriors


def test_objective_is_likelihood_and_hyperpriors():
    X, Y = data(5, 2)
    hyperprior = specified(outcome_scale="per_task")
    model = HyperpriorGP(X, Y, hyperprior)
    targets = (Y - Y.mean()) / Y.std()
    kernel = model.covar_module
    covariance = kernel(X).to_dense() + model.likelihood.noise * torch.eye(5).double()
    mean = torch.full((5,), 2.0).double()
    expected = torch.distributions.MultivariateNormal(mean, covariance).log_prob(targets[:, 0])
    for prior, value in (
        (NormalPrior(2.0, 0.5), model.mean_module.constant),
        (GammaPrior(3.0, 6.0), kernel.base_kernel.lengthscale),
        (GammaPrior(2.0, 4.0), kernel.outputscale),
        (GammaPrior(2.0, 200.0), model.likelihood.noise),
    ):
        expected = expected + prior.log_prob(value).sum()
        if isinstance(prior, GammaPrior):
            # The density of the logarithm.
            expected = expected + value.log().sum()
    torch.testing.assert_close(5 * log_posterior(model), expected.detach(), rtol=1e-6, atol=1e-6)


def test_lengthscales_follow_their_contexts(mphd):
    context = default_context(5, [0, 3])
    model = HyperpriorGP(*data(3, 5), mphd, context=context)
    prior = model.covar_module.base_kernel.lengthscale_prior
    expected = mphd.lengthscale_prior(5, context)
    assert isinstance(expected, GammaPrior)
    torch.testing.assert_close(prior.concentration, expected.concentration)
    torch.testing.assert_close(prior.rate, expected.rate)
    torch.testing.assert_close(model.covar_module.base_kernel.lengthscale[0], expected.mean)


def test_contexts_reach_it_through_construct_inputs(mphd):
    X, Y = data(3, 2)
    dataset = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
    context = default_context(2, [1])
    inputs = HyperpriorGP.construct_inputs(dataset, prior=mphd, context=context)
    model = HyperpriorGP(**inputs)
    expected = mphd.lengthscale_prior(2, context)
    torch.testing.assert_close(model.covar_module.base_kernel.lengthscale_prior.rate, expected.rate)


def test_each_lengthscale_has_bounds_of_its_own(mphd):
    context = default_context(2, [1])
    kernel = hyperprior_kernel(mphd, 2, context, torch.Size()).base_kernel
    _, lower, upper = start_and_bounds(mphd.lengthscale_prior(2, context))
    assert len({*lower.tolist()}) == 2
    torch.testing.assert_close(kernel.raw_lengthscale_constraint.lower_bound, lower)
    torch.testing.assert_close(kernel.raw_lengthscale_constraint.upper_bound, upper)


def test_what_was_saved_drives_a_dimension_never_seen(mphd, tmp_path):
    """What one machine saved, another one uses: both models, and the point that they choose."""
    mphd.save(tmp_path / "hyperprior.safetensors")
    loaded = Hyperprior.load(tmp_path / "hyperprior.safetensors")
    assert 5 not in mphd.estimates.dims
    X, Y = data(6, 5)
    candidates, context = ShiftedSines(5).inputs(20, 1), default_context(5, [0])
    for each in (HyperpriorGP, FullyBayesianHyperpriorGP):
        found = []
        for hyperprior in (mphd, loaded):
            model = each(X, Y, hyperprior, context=context)
            fit(model)
            with torch.no_grad():
                found.append(LogExpectedImprovement(model, Y.max())(candidates))
        assert found[0].isfinite().all()
        assert found[0].std() > 0
        assert torch.equal(*found)


@pytest.mark.usefixtures("nothing_remembered")
def test_domains_instead_of_a_hyperprior(monkeypatch):
    quick = partial(NetworkOptions, num_steps=5)
    monkeypatch.setattr("botorch_transfer.hyperprior.prior.NetworkOptions", quick)
    X, Y = data(3, 4)
    domains = [draw_domain([0.3], sizes=(5,)), draw_domain([0.5, 0.2], sizes=(5,))]
    learned = HyperpriorGP(X, Y, domains).prior
    assert (learned.kind, learned.task_names) == ("mphd", ("domain 0", "domain 1"))
    sources = HyperpriorGP(X[:, :2], Y, [(task.X, task.Y) for task in domains[1].datasets])
    assert sources.prior.task_names == ("source data",)


def test_known_values_of_the_posterior_without_points():
    model = HyperpriorGP(*data(0, 2), specified(), train_Yvar=data(0, 2)[1])
    posterior = model.posterior(ShiftedSines(2).inputs(3))
    torch.testing.assert_close(posterior.mean, torch.full((3, 1), 2.0).double())
    torch.testing.assert_close(posterior.variance, torch.full((3, 1), 0.5).double())
    torch.testing.assert_close(model.likelihood.noise, torch.full((1,), 0.01).double())


# ------------------------------------------------------------------------------------------ fitting


@pytest.mark.parametrize("shape", [0.4, 1.0])
@pytest.mark.parametrize("n", [1, 3])
def test_no_unbounded_corner(n, shape):
    """Densities that are unbounded at zero do not pull hyperparameters there."""
    corner = GammaPrior(shape, 2 * shape)
    hyperprior = specified(lengthscale=corner, outputscale=corner, outcome_scale="per_task")
    model = fit(HyperpriorGP(*data(n, 3), hyperprior))
    assert (model.covar_module.base_kernel.lengthscale > 0.1).all()
    assert model.covar_module.outputscale > 0.1


def test_what_the_data_do_not_tell_stays_at_the_hyperpriors_mean():
    """However wide it is: the lengthscale of an input that never varies."""
    hyperprior = specified(lengthscale=GammaPrior(0.5, 1.0), outcome_scale="per_task")
    X, Y = data(8, 2)
    X = torch.cat([X, torch.full((8, 1), 0.5).double()], dim=-1)
    model = fit(HyperpriorGP(X, Y, hyperprior))
    assert model.covar_module.base_kernel.lengthscale[0, 2].item() == pytest.approx(0.5, rel=1e-2)


def test_uniform_hyperpriors_are_bounds():
    hyperprior = specified(
        constant=UniformPrior(-1.0, 1.0),
        lengthscale=UniformPrior(0.2, 0.4),
        outputscale=UniformPrior(0.5, 3.0),
        noise=UniformPrior(1e-3, 1e-1),
        outcome_scale="per_task",
    )
    model = fit(HyperpriorGP(*data(8, 2), hyperprior))
    assert -1 <= model.mean_module.constant <= 1
    assert (model.covar_module.base_kernel.lengthscale >= 0.2 - 1e-9).all()
    assert (model.covar_module.base_kernel.lengthscale <= 0.4 + 1e-9).all()
    assert model.posterior(ShiftedSines(2).inputs(3)).mean.isfinite().all()


@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_float32_leaves_the_hyperprior_as_it_is(mphd):
    X, Y = data(4, 3)
    model = HyperpriorGP(X.float(), Y.float(), mphd)
    assert {part.dtype for part in model.parameters()} == {torch.float}
    assert model.covar_module.base_kernel.lengthscale_prior.rate.dtype == torch.float
    state = mphd.state_dict()
    assert {part.dtype for part in state.values() if part.is_floating_point()} == {torch.double}


# ------------------------------------------------------------------------------------------ refused


def test_an_empirical_hyperprior_is_refused():
    empirical = Hyperprior.fit(draw_domains(), kind="empirical", num_restarts=0)
    with pytest.raises(ValueError, match="no density to maximize"):
        HyperpriorGP(*data(3, 2), empirical)


def test_a_context_of_another_target_is_refused(mphd):
    with pytest.raises(InputDataError, match="the target has 3 inputs"):
        HyperpriorGP(*data(3, 3), mphd, context=default_context(2))


def test_raw_domains_that_share_their_space():
    bounds = torch.tensor([[0.0, 0.0], [2.0, 3.0]], dtype=torch.double)
    tasks = [data(5, 2), data(6, 2)]
    raw_tasks = [(bounds[1] * X, Y) for X, Y in tasks]
    transform = Normalize(2, bounds=bounds)
    raw, unit = (
        Hyperprior.fit([domain, domain], kind="universal", num_restarts=0)
        for domain in (Domain(raw_tasks, input_transform=transform), Domain(tasks))
    )
    X, Y = data(4, 2)
    model, expected = HyperpriorGP(bounds[1] * X, Y, raw), HyperpriorGP(X, Y, unit)
    torch.testing.assert_close(
        model.posterior(bounds[1] * X).mean, expected.posterior(X).mean, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("model_class", [HyperpriorGP, FullyBayesianHyperpriorGP])
def test_raw_domains_serve_other_search_spaces(model_class):
    def box(dim, upper):
        return Normalize(dim, bounds=torch.tensor([[0.0] * dim, [upper] * dim]).double())

    X, Y = data(8, 2)
    domain = Domain([(10.0 * X, Y)], input_transform=box(2, 10.0))
    hyperprior = Hyperprior.fit([domain], kind="universal", num_restarts=0)
    for dim in (2, 3):
        X, Y = data(4, dim)
        unit = model_class(X, Y, hyperprior, input_transform=box(dim, 1.0)).posterior(X)
        raw = model_class(5.0 * X, Y, hyperprior, input_transform=box(dim, 5.0)).posterior(5.0 * X)
        torch.testing.assert_close(raw.mean, unit.mean)
    # Without a transform of its own, a space of another dimension has none.
    torch.testing.assert_close(model_class(X, Y, hyperprior).posterior(X).mean, unit.mean)


def test_a_uniform_mean_stays_within_its_bounds():
    mean = hyperprior_mean(hyperpriors.specified(constant=UniformPrior(-1.0, 5.0)), torch.Size())
    assert mean.constant.item() == pytest.approx(2.0)
    constraint = mean.raw_constant_constraint
    assert (constraint.lower_bound, constraint.upper_bound) == (-1, 5)


def test_density_without_a_bound_at_zero_has_a_lower_one():
    corner = hyperpriors.specified(lengthscale=GammaPrior(0.5, 1.0))
    kernel = hyperprior_kernel(corner, 2, None, torch.Size())
    lower = kernel.base_kernel.raw_lengthscale_constraint.lower_bound
    draws = GammaPrior(0.5, 1.0).sample(torch.Size([20_000]))
    assert float((draws < lower).double().mean()) == pytest.approx(0.01, abs=3e-3)


def test_noise():
    noise = hyperprior_noise(hyperpriors.specified())
    assert noise.start == pytest.approx(5.05e-3)
    assert (noise.lower, noise.upper) == pytest.approx((1e-4, 1e-2))
    assert isinstance(noise.prior(), UniformPrior)


def test_noise_is_no_less_than_can_be_factorized():
    """However little noise a hyperprior expects, relative to the signal."""
    noise = hyperprior_noise(hyperpriors.specified(noise=GammaPrior(2.0, 1e9)))
    assert isinstance(noise.prior(), LogDensityGammaPrior)
    assert noise.lower == noise.start == pytest.approx(1e-6 * 0.5)
