"""Fits of joint models in closed form: values, gradients and optima against GPyTorch's."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.optim.utils import get_parameters
from gpytorch.kernels import RBFKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal

from botorch_transfer import JointHierarchicalGP, JointScaMLGP
from botorch_transfer.gp import restarts as fitting
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.joint import fit as joint_fit
from botorch_transfer.joint.fit import JointObjective, TaskLayout, joint_nll_and_gradient
from botorch_transfer.joint.models import SourceMarginalLogLikelihood, target_frozen
from tests.joint.joint_models import BLOCKS, FAMILY, MODELS, build, sources


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def likelihood_of(model):
    has_target = model.num_target_points > 0
    mll_class = ExactMarginalLogLikelihood if has_target else SourceMarginalLogLikelihood
    return mll_class(model.likelihood, model)


def evaluation(mll, starts):
    """The objective, and the rows of the starts."""
    objective = JointObjective.of(mll)
    assert objective is not None
    return objective, objective.rows(starts)


def expected_of(mll, start):
    """The value and the gradient of one start by GPyTorch."""
    parameters = get_parameters(mll, requires_grad=True)
    for each, parameter in parameters.items():
        parameter.data.copy_(start[each])
    value = -mll(mll.model(*mll.model.train_inputs), mll.model.train_targets)
    gradients = torch.autograd.grad(
        value.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return value, gradients


def drawn(mll, number):
    """Starts around the present values."""
    g = torch.Generator().manual_seed(1)
    return {
        each: torch.stack(
            [p.detach() + 0.1 * torch.rand(p.shape, generator=g).to(p) for _ in range(number)]
        )
        for each, p in get_parameters(mll, requires_grad=True).items()
    }


@pytest.mark.parametrize(
    ("num_tasks", "noise", "n"), [(1, "inferred", 1), (5, "mixed", 4), (5, "inferred", 0)]
)
def test_value_and_gradient_are_gpytorchs(name, num_tasks, noise, n):
    mll = likelihood_of(build(name, num_tasks, n, noise)).train()
    with target_frozen(mll) if n == 0 else nullcontext():
        starts = drawn(mll, 3)
        evaluate, rows = evaluation(mll, starts)
        order = torch.tensor([2, 0])
        value, gradient = evaluate(rows[order], order)
        for place, start in enumerate(order.tolist()):
            one = {each: values[start] for each, values in starts.items()}
            expected, gradients = expected_of(mll, one)
            torch.testing.assert_close(value[place], expected.detach(), rtol=1e-7, atol=1e-7)
            flat = torch.cat([each.flatten() for each in gradients])
            torch.testing.assert_close(gradient[place], flat, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["MTGP", "WSGP", "HGP"])
def test_batches_of_models(name):
    X = torch.stack([FAMILY.target(4, seed)[0] for seed in (100, 101)])
    model_class, options = MODELS[name]
    mll = likelihood_of(model_class(X, FAMILY.value(X), sources(2), **options)).train()
    starts = drawn(mll, 2)
    evaluate, rows = evaluation(mll, starts)
    value, gradient = evaluate(rows, torch.arange(4))
    for start in range(2):
        one = {each: values[start] for each, values in starts.items()}
        expected, gradients = expected_of(mll, one)
        of_start = slice(2 * start, 2 * start + 2)
        torch.testing.assert_close(value[of_start], expected.detach(), rtol=1e-7, atol=1e-7)
        flat = torch.cat([each.reshape(2, -1) for each in gradients], dim=-1)
        torch.testing.assert_close(gradient[of_start], flat, rtol=1e-5, atol=1e-6)


def without_botorch(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("BoTorch's optimizer was called.")

    monkeypatch.setattr(fitting, "fit_fallback", fail)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("n", [0, 4])
def test_models_are_fitted_in_closed_form(name, n, monkeypatch):
    without_botorch(monkeypatch)
    mll = likelihood_of(build(name, n=n))

    def value():
        with torch.no_grad():
            output = mll.train().model(*mll.model.train_inputs)
            return mll(output, mll.model.train_targets).item()

    before = value()
    options = {"num_restarts": 0, "optimizer_kwargs": {"options": {"maxiter": 5}}}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(mll.model.likelihood, mll.model), **options)
    assert not mll.model.training
    assert value() > before


@pytest.mark.parametrize("name", BLOCKS)
def test_the_optimum_is_that_of_botorchs_optimizer(name, monkeypatch):
    """Free matrices have flat ridges, where both stop somewhere."""
    values = []
    for in_closed_form in (True, False):
        if not in_closed_form:
            monkeypatch.setattr(JointObjective, "of", lambda mll: None)
        model = build(name, num_tasks=2, n=6)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll, num_restarts=0)
        with torch.no_grad():
            output = mll.train().model(*model.train_inputs)
            values.append(6 * mll(output, model.train_targets).item())
    assert values[0] > values[1] - 0.01


@pytest.mark.parametrize("is_long", [False, True])
def test_a_long_fit_says_so(is_long, monkeypatch, caplog):
    monkeypatch.setattr(joint_fit, "LONG", 0.0 if is_long else 1000.0)
    model = build("HGP")
    with caplog.at_level(logging.INFO):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == is_long
    for message in told:
        assert message.startswith("The fit of JointHierarchicalGP to 15 points will take about ")
        assert "max_points=" in message


def test_a_kernel_of_another_kind_is_fitted_by_botorch(monkeypatch):
    kernels = [ScaleKernel(RBFKernel()), ScaleKernel(RBFKernel()), ScaleKernel(RQKernel())]
    model = JointHierarchicalGP(*FAMILY.target(4), sources(2), covar_modules=kernels)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert JointObjective.of(mll.train()) is None
    without_botorch(monkeypatch)
    with pytest.raises(AssertionError, match="BoTorch's optimizer was called"):
        fit_gpytorch_mll(mll)


def test_a_model_with_another_prior_of_the_target_is_fitted_by_botorch():
    class Shifted(JointScaMLGP):
        def forward(self, x):
            return super().forward(x)

    model = Shifted(*FAMILY.target(4), sources(2))
    assert model.closed_form(ExactMarginalLogLikelihood(model.likelihood, model)) is None


# ------------------------------------------------------------------- the likelihood and a dense one

NAMES = ("rbf", "matern52", "matern32", "rbf")
HIERARCHY = [[task >= index for task in range(4)] for index in range(4)]
INDEPENDENT = [[task in (index, 3) for task in range(4)] for index in range(4)]
FREE = [[True] * 4] * 2


def problem(support, sizes):
    """Random points and hyperparameters, each a leaf of the graph."""
    g = torch.Generator().manual_seed(0)
    count, total = len(support), sum(sizes)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.double)

    factors = draw(count, 4, 2) * torch.tensor(support).unsqueeze(-1)
    leaves = {
        "covariances": factors @ factors.mT,
        "lengthscale": 0.2 + draw(count, 3),
        "scale": 0.5 + draw(count),
        "noise": 0.1 + draw(total),
    }
    return draw(total, 3), draw(total), {n: leaf.requires_grad_() for n, leaf in leaves.items()}


def dense(X, Y, tasks, covariances, lengthscale, scale, noise):
    """The negative log likelihood by its definition."""
    covariance = torch.diag(noise)
    for name, W, own, variance in zip(NAMES, covariances, lengthscale, scale, strict=False):
        kernel = Stationary(name, own.unsqueeze(0), variance)
        covariance = covariance + W[tasks][:, tasks] * kernel.between(X, X.clone())
    return -MultivariateNormal(torch.zeros_like(Y), covariance).log_prob(Y)


@pytest.mark.parametrize("sizes", [(5, 3, 4, 6), (2, 1, 3, 1), (4, 2, 3, 0)])
@pytest.mark.parametrize(
    ("support", "independent"),
    [(HIERARCHY, False), (FREE, False), (INDEPENDENT, True), (INDEPENDENT, False)],
    ids=["hierarchy", "free", "independent", "independent, as one block"],
)
def test_value_and_gradient(support, independent, sizes):
    X, Y, leaves = problem(support, sizes)
    tasks = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    expected = dense(X, Y, tasks, **leaves)
    expected_gradient = torch.autograd.grad(expected, list(leaves.values()))
    kernels = [
        Stationary(name, own.detach().unsqueeze(0), variance.detach())
        for name, own, variance in zip(NAMES, leaves["lengthscale"], leaves["scale"], strict=False)
    ]
    layout = TaskLayout(sizes, support, independent)
    value, gradient = joint_nll_and_gradient(
        layout, X, Y, leaves["noise"].detach(), leaves["covariances"].detach(), kernels
    )
    torch.testing.assert_close(value, expected.detach())
    for name, reference in zip(leaves, expected_gradient, strict=True):
        found = getattr(gradient, name)
        if name == "covariances":  # nobody reads those of tasks without a part
            inside = torch.tensor(support)
            inside = inside.unsqueeze(-1) & inside.unsqueeze(-2)
            found, reference = found[inside], reference[inside]
        torch.testing.assert_close(found, reference)


@pytest.mark.parametrize("independent", [False, True])
def test_a_matrix_that_is_not_positive_definite(independent):
    X, Y, leaves = problem(INDEPENDENT, (2, 2, 2, 2))
    kernels = [
        Stationary("rbf", torch.ones(1, 3).double(), torch.ones(()).double()) for _ in range(4)
    ]
    layout = TaskLayout((2, 2, 2, 2), INDEPENDENT, independent)
    value, _ = joint_nll_and_gradient(
        layout, X, Y, -leaves["noise"].detach(), leaves["covariances"].detach(), kernels
    )
    assert value.isnan()
