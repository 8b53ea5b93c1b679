"""Joint models without target points, which are fitted to their source data alone."""

from __future__ import annotations

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import JointScaMLGP, ScaMLGP, SourceGPs
from botorch_transfer.models.joint import SourceMarginalLogLikelihood
from tests.models.joint_models import FAMILY, MODELS, SIZES, TEST_X, build
from tests.models.joint_twin import JointTwin


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def source_objective(model):
    mll = SourceMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets)


@pytest.mark.parametrize("num_restarts", [0, 1])
def test_the_sources_are_fitted(name, num_restarts):
    model = build(name, n=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    start = source_objective(model)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert fit_gpytorch_mll(mll, num_restarts=num_restarts) is mll
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert any("data_kernels.0" in key for key in changed)
    assert any("conditional.noise" in key for key in changed)
    # What relates the target to the sources, and what is its own, is not known yet.
    own = ["task_weights", "raw_factors", "likelihood"]
    own += [] if name.startswith("MT") else [f"data_kernels.{len(model.covar_modules) - 1}."]
    assert not [key for key in changed if any(part in key for part in own)]
    assert source_objective(model) > start


def test_modular_and_joint_fits_are_the_same():
    """ScaML-GP's theorem, once more: there is nothing yet that could tell them apart."""
    X, Y = FAMILY.target(0)
    history = FAMILY.sources((12, 15))
    model = JointScaMLGP(X, Y, history)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    found = model.posterior(TEST_X)
    expected = ScaMLGP(X, Y, SourceGPs.fit(history)).posterior(TEST_X)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-3, atol=1e-3)


def test_the_objective_is_that_of_the_sources(name):
    model = build(name, n=0)
    hyperpriors = sum(
        prior.log_prob(closure(module)).sum()
        for _, module, prior, closure, _ in model.named_priors()
    )
    expected = (JointTwin(model).log_likelihood() + hyperpriors) / sum(SIZES[2])
    torch.testing.assert_close(source_objective(model), expected, rtol=1e-8, atol=1e-8)


def test_with_nothing_to_fit_nothing_changes(name):
    model = build(name, n=0)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in model.parameters())
