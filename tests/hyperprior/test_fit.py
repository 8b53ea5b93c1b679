"""The likelihood of a domain, against a naive joint one."""

import logging
import math
from dataclasses import replace

import joblib
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import UniformPrior
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch.testing import assert_close

from botorch_transfer.data import Domain, as_datasets
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperprior import fit as domain_fit
from botorch_transfer.hyperprior.fit import (
    BROAD_SHAPE,
    MAX_SHAPE,
    DomainFitOptions,
    HyperparameterDraws,
    fit_domains,
    fit_gamma,
    fit_normal,
    log_likelihoods,
)
from botorch_transfer.hyperprior.prior import hierarchical_negative_log_likelihood
from tests.gp.tasks import draw_data
from tests.hyperprior.domains import draw_domain, draw_domains
from tests.members import hyperprior

KERNELS = {"rbf": RBFKernel, "matern52": MaternKernel}


def objective(theta, tasks, kernel, spread=math.inf):
    """The value and the gradient of the sum over tasks, and maybe of the hyperprior."""
    evaluate = domain_fit._objective(tasks, kernel, DomainFitOptions(lengthscale_spread=spread))
    value, gradient = evaluate(theta, torch.arange(len(theta)))
    num_points = tasks.num_points.sum()
    return value * num_points, gradient * num_points


def twin(theta, datasets, kernel):
    """The same sum, task by task by GPyTorch, differentiable."""
    dim = datasets[0].X.shape[-1]
    module = ScaleKernel(KERNELS[kernel](ard_num_dims=dim)).double()
    total = theta.new_zeros(())
    for data in datasets:
        X = data.X / theta[:dim].exp()
        module.base_kernel.lengthscale = torch.ones(1, dim)
        module.outputscale = 1.0
        covariance = module(X).to_dense() * theta[dim].exp()
        noise = theta[dim + 1].exp() if data.Yvar is None else data.Yvar.squeeze(-1)
        covariance = covariance + noise * torch.eye(len(X)).double()
        mean = theta[-1].expand(len(X))
        total = total - MultivariateNormal(mean, covariance).log_prob(data.Y.squeeze(-1))
    return total


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("known_noise", [(), (1,), (0, 1, 2)])
def test_value_and_gradient_equal_the_naive_sum(kernel, known_noise):
    datasets = as_datasets(draw_data((9, 4, 12), dim=3, known_noise=known_noise))
    tasks = PaddedTasks.from_datasets(datasets)
    theta = torch.tensor(
        [[-1.0, 0.3, -0.4, 0.2, -3.0, 0.7], [0.1, -0.5, 0.6, -1.0, -5.0, -2.0]], dtype=torch.double
    )
    value, gradient = objective(theta, tasks, kernel)
    for row in range(2):
        parameters = theta[row].clone().requires_grad_(True)
        expected = twin(parameters, datasets, kernel)
        (slope,) = torch.autograd.grad(expected, parameters, allow_unused=True)
        torch.testing.assert_close(value[row], expected.detach(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gradient[row], slope, rtol=1e-6, atol=1e-6)


def test_undefined_likelihoods_are_nan():
    tasks = PaddedTasks.from_datasets(as_datasets(draw_data((5,))))
    tasks = replace(tasks, X=tasks.X * torch.nan)
    value, _ = objective(torch.zeros(1, 5, dtype=torch.double), tasks, "rbf")
    assert value.isnan().all()


def test_the_hyperprior_is_a_normal_distribution_of_logarithms():
    tasks = PaddedTasks.from_datasets(as_datasets(draw_data((5,))))
    theta = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    without, with_prior = (objective(theta, tasks, "rbf", spread) for spread in (math.inf, 1.5))
    normal = torch.distributions.Normal(torch.tensor(0.5).double().log(), 1.5)
    expected = -normal.log_prob(theta[:, :2]).sum(dim=-1)
    torch.testing.assert_close(with_prior[0] - without[0], expected.detach())
    (slope,) = torch.autograd.grad(expected.sum(), theta)
    torch.testing.assert_close(with_prior[1] - without[1], slope)


TENSORS = ("lengthscale", "constant", "outputscale", "noise")


def fit(domains, scale="raw", kernel="matern52", **options):
    return fit_domains(domains, kernel, scale, DomainFitOptions(**{"num_restarts": 0, **options}))


def value(domain, estimates, kernel="matern52"):
    """The log likelihood of one domain's estimates, evaluated anew."""
    parts = [estimates.lengthscale, estimates.outputscale, estimates.noise]
    theta = torch.cat([torch.cat(parts).log(), estimates.constant]).unsqueeze(0)
    tasks = PaddedTasks.from_datasets(domain.datasets)
    return -objective(theta, tasks, kernel)[0]


def test_estimates_are_a_maximum_of_the_likelihood():
    domain = draw_domain([0.3, 0.6], sizes=(20, 15, 10))
    estimates = fit([domain], lengthscale_spread=math.inf)
    best = value(domain, estimates)
    torch.testing.assert_close(estimates.log_likelihood, best)
    for name in TENSORS:
        tensor = getattr(estimates, name)
        for factor in (0.9, 1.1):
            for index in range(len(tensor)):
                moved = tensor.clone()
                moved[index] *= factor
                other = type(estimates)(**{**vars(estimates), name: moved})
                assert value(domain, other) < best + 1e-4


@pytest.mark.parametrize("units", [(1e-4, 0.0), (1e5, 1e6)])
def test_units_do_not_matter(units):
    scale, offset = units
    domain = draw_domain([0.3, 0.6], sizes=(20, 15))
    moved = Domain([(data.X, data.Y * scale + offset) for data in domain.datasets])
    expected, found = fit([domain]), fit([moved])
    near = {"rtol": 1e-3, "atol": 0}
    torch.testing.assert_close(found.lengthscale, expected.lengthscale, **near)
    torch.testing.assert_close(found.constant, expected.constant * scale + offset, **near)
    for name in ("outputscale", "noise"):
        torch.testing.assert_close(getattr(found, name) / scale**2, getattr(expected, name), **near)
    # Of 35 points.
    assert_close(found.log_likelihood, expected.log_likelihood - 35 * math.log(scale), **near)


def test_tasks_standardized_one_by_one():
    domain = draw_domain([0.3], sizes=(20, 15))
    pairs = [(data.X, data.Y) for data in domain.datasets]
    moved = Domain([pairs[0], (pairs[1][0], 100 * pairs[1][1] - 7)])
    standardized = Domain([(X, (Y - Y.mean()) / Y.std()) for X, Y in pairs])
    found, expected = fit([moved], "per_task"), fit([standardized])
    for name in TENSORS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    means = torch.stack([pairs[0][1].mean(), 100 * pairs[1][1].mean() - 7])
    torch.testing.assert_close(found.outcome_mean, means.mean().reshape(1))
    variances = torch.stack([pairs[0][1].var(), 1e4 * pairs[1][1].var()])
    torch.testing.assert_close(found.outcome_std, variances.mean().sqrt().reshape(1))


def test_domains_are_independent_and_in_order():
    domains = draw_domains()
    together = fit(domains)
    assert together.names == ("one", "two", "three")
    assert together.dims.tolist() == [1, 2, 3]
    alone = [fit([domain]) for domain in domains]
    for name in TENSORS:
        expected = torch.cat([getattr(each, name) for each in alone])
        torch.testing.assert_close(getattr(together, name), expected)
    assert together.context.tolist() == torch.cat([d.context for d in domains]).tolist()


def test_parallel_fits_are_the_same():
    with joblib.parallel_config(backend="threading"):
        one, two = (fit(draw_domains()[:2], n_jobs=n_jobs, seed=n_jobs) for n_jobs in (1, 2))
    torch.testing.assert_close(one.lengthscale, two.lengthscale)


@pytest.mark.usefixtures("nothing_remembered")
def test_an_interrupted_run_does_not_repeat_what_was_finished(monkeypatch):
    calls, original = [], domain_fit._fit_domain

    def interrupted(tasks, kernel, options):
        calls.append(tasks.X.shape[-1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(tasks, kernel, options)

    monkeypatch.setattr(domain_fit, "_fit_domain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(draw_domains())
    fit(draw_domains())
    assert calls == [1, 2, 2, 3]


def test_lengthscales_that_do_not_matter_stay():
    """A function that is rough in one input looks like noise, whatever the other's lengthscale."""
    domain = draw_domain([0.001, 0.3], sizes=(15, 15, 15), noise=1e-4, seed=2)
    far, farther = (
        fit([domain], **options).lengthscale.log().sub(math.log(0.5)).abs().max()
        for options in ({}, {"lengthscale_spread": math.inf})
    )
    assert far < 1.5
    assert farther > 2.5


def test_of_large_tasks_some_points_count():
    domain = draw_domain([0.3, 0.6], sizes=(60,) * 8, noise=0.1)
    expected = fit([domain])
    found = fit([domain], fit_points=30)
    assert float(value(domain, found)) > float(expected.log_likelihood) - 12
    assert float(value(domain, found)) < float(expected.log_likelihood) - 0.1


def test_domains_have_no_inducing_points():
    with pytest.raises(TypeError, match="max_inducing"):
        fit(draw_domains(), max_inducing=3)


def test_known_noise():
    domain = draw_domain([0.3], sizes=(15, 15))
    data = domain.datasets
    known = [(task.X, task.Y, torch.full_like(task.Y, 0.04)) for task in data]
    estimates = fit([Domain(known), Domain([known[0], (data[1].X, data[1].Y)])])
    assert float(estimates.noise[0]) == pytest.approx(0.04)
    assert float(estimates.noise[1]) not in (pytest.approx(0.02), pytest.approx(0.04))
    assert estimates.log_likelihood.isfinite().all()


def test_single_precision():
    domain = draw_domain([0.3, 0.6])
    single = Domain([(data.X.float(), data.Y.float()) for data in domain.datasets])
    found = fit([single])
    assert found.lengthscale.dtype == torch.double
    torch.testing.assert_close(found.lengthscale, fit([domain]).lengthscale, rtol=0.05, atol=0)


def test_noise_is_never_lost():
    X = torch.linspace(0, 1, 12).double().unsqueeze(-1)
    estimates = fit([Domain([(X, X), (X, X.square())])])
    assert float(estimates.noise / estimates.outputscale) == pytest.approx(1e-5)


def test_outcomes_that_never_vary_are_refused():
    X = torch.rand(6, 2, dtype=torch.double)
    constant = Domain([(X, torch.full((6, 1), 3.0).double())], name="flat")
    with pytest.raises(InputDataError, match="outcomes of domain 'flat' are constant"):
        fit([constant])


def test_too_large_domains_are_refused():
    with pytest.raises(InputDataError, match="'one: source task 0' has 12 points"):
        fit(draw_domains(), max_bytes=7000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_restarts": -1}, "must not be negative"),
        ({"fit_points": 0}, "must be positive"),
        ({"lengthscale_spread": 0.0}, "must be positive"),
    ],
)
def test_unfit_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DomainFitOptions(**options)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e6])
@pytest.mark.parametrize(("shape", "n"), [(0.3, 5), (1.0, 40), (10.0, 7), (200.0, 500)])
def test_gamma_equals_scipys(shape, n, scale):
    sample = stats.gamma.rvs(shape, scale=scale, size=n, random_state=n)
    a, _, b = stats.gamma.fit(sample / scale, floc=0)
    found = fit_gamma(torch.from_numpy(sample))
    assert_close(found, torch.tensor([a, 1 / (b * scale)], dtype=torch.double), rtol=1e-6, atol=0)


@pytest.mark.parametrize("values", [[0.4], [0.4, 0.4], [0.4, 0.4 * (1 + 1e-9), 0.4]])
def test_degenerate_estimates_give_a_broad_gamma(values, caplog):
    with caplog.at_level(logging.WARNING):
        shape, rate = fit_gamma(torch.tensor(values, dtype=torch.double), "noise")
    assert shape == BROAD_SHAPE
    assert_close(shape / rate, torch.tensor(0.4, dtype=torch.double))
    assert f"The estimates of the noise ({len(values)} in all) differ too little" in caplog.text


def test_the_guard_begins_at_its_largest_shape():
    narrow = torch.from_numpy(stats.gamma.ppf([0.25, 0.5, 0.75], 4 * MAX_SHAPE))
    broader = torch.from_numpy(stats.gamma.ppf([0.05, 0.5, 0.95], 0.4 * MAX_SHAPE))
    assert fit_gamma(narrow)[0] == BROAD_SHAPE
    assert 0.2 * MAX_SHAPE < fit_gamma(broader)[0] < 1.5 * MAX_SHAPE


@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=6))
def test_any_estimates_give_a_gamma(values):
    shape, rate = fit_gamma(torch.tensor(values, dtype=torch.double))
    assert 0 < shape < 10 * MAX_SHAPE
    assert torch.isfinite(rate)
    assert rate > 0


def test_normal_is_the_maximum_likelihood_one():
    sample = torch.tensor([1.0, 2.0, 6.0], dtype=torch.double)
    mean, std = fit_normal(sample, broad=1.0)
    expected = stats.norm.fit(sample.numpy())
    assert_close(torch.stack([mean, std]), torch.tensor(expected).double())


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0]])
def test_degenerate_estimates_give_a_broad_normal(values, caplog):
    with caplog.at_level(logging.WARNING):
        found = fit_normal(torch.tensor(values), broad=0.5, name="mean")
    assert found.tolist() == [3.0, 0.5]
    assert "The estimates of the mean (" in caplog.text


def draws(num: int, dim: int) -> HyperparameterDraws:
    def positive(*shape: int) -> torch.Tensor:
        return 0.1 + torch.rand(*shape, dtype=torch.double)

    return HyperparameterDraws(
        constant=torch.randn(num, dtype=torch.double),
        lengthscale=positive(num, dim),
        outputscale=positive(num),
        noise=positive(num),
    )


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("known_noise", [False, True])
def test_likelihoods_equal_gpytorchs(n, known_noise, monkeypatch):
    monkeypatch.setattr(domain_fit, "BLOCK_ELEMENTS", 100)  # two or three rows at a time
    drawn = draws(5, 2)
    X, Y = torch.rand(n, 2, dtype=torch.double), torch.randn(n, dtype=torch.double)
    Yvar = 0.1 + torch.rand(n, dtype=torch.double) if known_noise else None
    found = log_likelihoods(drawn, X, Y, Yvar, "matern32")
    for row in range(5):
        kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2)).double()
        kernel.base_kernel.lengthscale = drawn.lengthscale[row]
        kernel.outputscale = drawn.outputscale[row]
        noise = drawn.noise[row].expand(n) if Yvar is None else Yvar
        covariance = kernel(X).to_dense() + noise.diag()
        mean = drawn.constant[row].expand(n)
        expected = (
            MultivariateNormal(mean, covariance).log_prob(Y) if n else torch.zeros(()).double()
        )
        torch.testing.assert_close(found[row], expected.detach(), rtol=1e-8, atol=1e-8)


def test_impossible_draws_weigh_nothing():
    drawn = draws(2, 1)
    drawn.outputscale[1] = torch.nan
    X = torch.rand(3, 1, dtype=torch.double)
    found = log_likelihoods(drawn, X, X.squeeze(-1), None, "rbf")
    assert found[0].isfinite()
    assert found[1] == -torch.inf


HYPERPRIOR = hyperprior(noise=UniformPrior(0.1, 0.1001))


def test_a_single_point_has_a_known_value():
    """There, mean, signal variance and noise are all that matters: an integral in one dimension."""
    X, Y = torch.rand(1, 2, dtype=torch.double), torch.tensor([[2.0]], dtype=torch.double)
    found = hierarchical_negative_log_likelihood(HYPERPRIOR, [(X, Y)], num_samples=200_000)

    def density(s):
        return stats.norm.pdf(2.0, 0.5, math.sqrt(1 + s + 0.1)) * stats.gamma.pdf(s, 2, scale=0.5)

    expected = -math.log(integrate.quad(density, 0, 50)[0])
    assert float(found) == pytest.approx(expected, abs=0.01)


def test_value_is_that_of_the_draws():
    X = torch.rand(6, 2, dtype=torch.double)
    tasks = {"a": (X, X[:, :1]), "b": (X[:3], X[:3, 1:], torch.full((3, 1), 0.2).double())}
    found = hierarchical_negative_log_likelihood(HYPERPRIOR, tasks, num_samples=50, seed=4)
    draws = HYPERPRIOR.sample(50, 2, seed=4)
    for value, (X, Y, *Yvar) in zip(found, tasks.values(), strict=True):
        noise = Yvar[0].squeeze(-1) if Yvar else None
        likelihoods = log_likelihoods(draws, X, Y.squeeze(-1), noise, "matern52").exp()
        torch.testing.assert_close(value, -likelihoods.mean().log())


def test_no_tasks_and_no_draws_are_refused():
    with pytest.raises(InputDataError, match="no source tasks"):
        hierarchical_negative_log_likelihood(HYPERPRIOR, [])
    X = torch.rand(3, 2, dtype=torch.double)
    with pytest.raises(ValueError, match="num_samples=0"):
        hierarchical_negative_log_likelihood(HYPERPRIOR, [(X, X[:, :1])], num_samples=0)
