from __future__ import annotations

from functools import partial

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import Normalize
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import GuardedTransferGP, ScaMLGP, SourceGPs
from tests.families import ShiftedSines
from tests.models.contract import copy_hyperparameters

FAMILY = ShiftedSines()
PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)
TEST_X = FAMILY.inputs(4, seed=5)


def build(n=4):
    return GuardedTransferGP(*FAMILY.target(n), PRIOR)


def log_likelihood(model):
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets)


def test_alone_it_is_the_plain_gp():
    model = build().eval()
    with torch.no_grad():
        plain = model.plain(TEST_X).mean
        with model._alone():
            assert torch.equal(model(TEST_X).mean, plain)
            assert not any(name.startswith("transfer.") for name, _ in model.named_parameters())
        assert not torch.equal(model(TEST_X).mean, plain)
    with pytest.raises(RuntimeError), model._alone():
        raise RuntimeError
    assert isinstance(model.transfer, ScaMLGP)


def test_the_objective_is_that_of_both():
    model = build()
    transfer = ScaMLGP(*FAMILY.target(4), PRIOR)
    copy_hyperparameters(model.transfer, transfer)
    with model._alone():
        plain = log_likelihood(model)
    both = log_likelihood(model)
    torch.testing.assert_close(both, plain + log_likelihood(transfer))
    both.backward()
    assert model.transfer.task_weights.raw_weights.grad.abs().sum() > 0
    assert model.covar_module.raw_outputscale.grad.abs().sum() > 0
    # What the term holds of the graph goes with the training mode.
    model.eval()
    assert [term for term in model.added_loss_terms() if term is not None] == []


def test_a_fit_by_another_optimizer_reaches_both():
    model = build()
    parts = (model.covar_module.raw_outputscale, model.transfer.task_weights.raw_weights)
    before = [part.detach().clone() for part in parts]
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"options": {"maxiter": 10}}
    fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_scipy, optimizer_kwargs=options)
    parts = (model.covar_module.raw_outputscale, model.transfer.task_weights.raw_weights)
    for part, value in zip(parts, before, strict=True):
        assert not torch.equal(part, value)
    assert not model.training
    assert not model.transfer.training


def test_new_data_go_to_both():
    X, Y = FAMILY.target(4)
    model = GuardedTransferGP(X, Y, PRIOR)
    model.set_train_data(X + 0.01, model.train_targets + 1.0)
    for each in (model, model.transfer):
        assert torch.equal(each.train_inputs[0], X + 0.01)
        assert torch.equal(each.train_targets, model.train_targets)


@pytest.mark.parametrize("n", [0, 4])
def test_both_know_their_raw_inputs_once_they_are_conditioned(n):
    transform = Normalize(2, bounds=torch.tensor([[-1.0, 5.0], [1.0, 9.0]], dtype=torch.double))
    X, Y = FAMILY.target(n)
    raw, new = transform.untransform(X), transform.untransform(FAMILY.inputs(2, seed=9))
    model = GuardedTransferGP(raw, Y, PRIOR, input_transform=transform)
    model.posterior(new)
    conditioned = model.condition_on_observations(new, FAMILY.value(transform(new)))
    before = conditioned.posterior(new).mean
    conditioned.train()
    for each in (conditioned, conditioned.transfer):
        torch.testing.assert_close(each.train_inputs[0], torch.cat([raw, new]))
    torch.testing.assert_close(conditioned.posterior(new).mean, before)


@pytest.mark.parametrize("n", [0, 4])
def test_both_are_conditioned(n):
    model = build(n).eval()
    X = FAMILY.inputs(2, seed=9)
    conditioned = model.condition_on_observations(X, FAMILY.value(X))
    for each in (conditioned, conditioned.transfer):
        assert each.num_target_points == n + 2
    assert model.num_target_points == model.transfer.num_target_points == n
    transfer = model.transfer.condition_on_observations(X, FAMILY.value(X))
    posterior = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    posterior(conditioned.transfer(TEST_X).mean, transfer(TEST_X).mean)
    assert not torch.equal(conditioned.plain(TEST_X).mean, transfer(TEST_X).mean)
