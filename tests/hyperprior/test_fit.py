"""The likelihood of a domain, against a naive joint one."""

import math
from dataclasses import replace

import joblib
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_transfer.data import Domain, as_datasets
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperprior import fit as domain_fit
from botorch_transfer.hyperprior.fit import DomainFitOptions, fit_domains
from tests.gp.tasks import draw_data
from tests.hyperprior.domains import draw_domain, draw_domains

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
    num_points = 35
    torch.testing.assert_close(
        found.log_likelihood, expected.log_likelihood - num_points * math.log(scale), **near
    )


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
