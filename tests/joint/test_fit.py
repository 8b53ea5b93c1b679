"""Fits of joint models in closed form: values, gradients and optima against GPyTorch's."""

import logging
from contextlib import nullcontext

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import RBFKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import JointHierarchicalGP, JointScaMLGP, progress
from botorch_transfer.gp import objective as target_fit
from botorch_transfer.joint.conditional import JointObjective
from botorch_transfer.joint.models import SourceMarginalLogLikelihood, target_frozen
from tests.fits import fit_model
from tests.gp.gpytorchs import gpytorchs
from tests.joint.joint_models import BLOCKS, FAMILY, MODELS, build, sources


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def likelihood_of(model):
    has_target = model.num_target_points > 0
    mll_class = ExactMarginalLogLikelihood if has_target else SourceMarginalLogLikelihood
    return mll_class(model.likelihood, model)


def scattered_rows(mll, number):
    """The objective; rows around the present values; GPyTorch's values and gradients there."""
    objective = mll.model.closed_form(mll)
    assert isinstance(objective, JointObjective)
    g, rows, values, gradients = torch.Generator().manual_seed(1), [], [], []
    for _ in range(number):
        for param in objective.params(mll.model).values():
            if param.is_fitted:
                param.raw.data.add_(0.1 * torch.rand(param.raw.shape, generator=g).to(param.raw))
        rows.append(objective.read(mll))
        value, gradient = gpytorchs(mll, objective.params(mll.model))
        values.append(value)
        gradients.append(gradient)
    return objective, torch.cat(rows), torch.cat(values), torch.cat(gradients)


@pytest.mark.parametrize(
    ("num_tasks", "noise", "n"), [(1, "inferred", 1), (5, "mixed", 4), (5, "inferred", 0)]
)
def test_value_and_gradient_are_gpytorchs(name, num_tasks, noise, n):
    mll = likelihood_of(build(name, num_tasks, n, noise)).train()
    with target_frozen(mll) if n == 0 else nullcontext():
        evaluate, rows, expected, gradients = scattered_rows(mll, 3)
        order = torch.tensor([2, 0])
        value, gradient = evaluate(rows[order], order)
        torch.testing.assert_close(value, expected[order], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(gradient, gradients[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["MTGP", "WSGP", "HGP"])
def test_batches_of_models(name):
    X = torch.stack([FAMILY.target(4, seed)[0] for seed in (100, 101)])
    model_class, options = MODELS[name]
    mll = likelihood_of(model_class(X, FAMILY.value(X), sources(2), **options)).train()
    evaluate, rows, expected, gradients = scattered_rows(mll, 2)
    value, gradient = evaluate(rows, torch.arange(4))
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(gradient, gradients, rtol=1e-5, atol=1e-6)


def without_botorch(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("BoTorch's optimizer was called.")

    monkeypatch.setattr(target_fit, "fit_gpytorch_mll_scipy", fail)


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
    fit_model(mll.model, **options)
    assert not mll.model.training
    assert value() > before


@pytest.mark.parametrize("is_long", [False, True])
def test_a_long_fit_says_so(is_long, monkeypatch, caplog):
    monkeypatch.setattr(progress, "PATIENCE", 0.0 if is_long else 1000.0)
    model = build("HGP")
    with caplog.at_level(logging.INFO):
        fit_model(model, num_restarts=0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == is_long
    for message in told:
        assert "seconds (one GP of 15 points; lower max_points= to save time)" in message


def test_a_kernel_of_another_kind_is_fitted_by_autograd():
    kernels = [ScaleKernel(RBFKernel()), ScaleKernel(RBFKernel()), ScaleKernel(RQKernel())]
    model = JointHierarchicalGP(*FAMILY.target(4), sources(2), covar_modules=kernels)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert model.closed_form(mll.train()) is None
    before = kernels[0].outputscale.item()
    fit_gpytorch_mll(mll, num_restarts=0, optimizer_kwargs={"options": {"maxiter": 2}})
    assert kernels[0].outputscale.item() != before


def test_a_model_with_another_prior_of_the_target_is_fitted_by_autograd():
    class Shifted(JointScaMLGP):
        def forward(self, x):
            return super().forward(x)

    model = Shifted(*FAMILY.target(4), sources(2))
    assert model.closed_form(ExactMarginalLogLikelihood(model.likelihood, model)) is None


# ------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("name", BLOCKS)
def test_a_matrix_that_is_not_positive_definite(name):
    model = build(name)
    objective = model.closed_form(likelihood_of(model).train())
    rows = objective.read(objective.mll).repeat(2, 1)
    rows[0, 0] = torch.nan
    value, gradient = objective(rows, torch.arange(2))
    assert value.isnan().tolist() == [True, False]
    assert gradient[1].isfinite().all()
