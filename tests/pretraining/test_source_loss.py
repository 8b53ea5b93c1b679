"""The loss of pre-training against one task, or one group, at a time."""

from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from torch.distributions import MultivariateNormal

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining.pretrained import objectives
from botorch_transfer.pretraining.pretrained.objectives import (
    EmpiricalGaussian,
    GroupEKL,
    PretrainingOptions,
    SourceLoss,
    TaskNLL,
    TrainingTasks,
    ekl,
    find_matching_groups,
)
from botorch_transfer.pretraining.pretrained.parts import GPParts, hyperbo
from botorch_transfer.pretraining.tasks import PaddedTasks
from tests.families import ShiftedSines

FAMILY = ShiftedSines()


def parts():
    parts = GPParts(*hyperbo(2, hidden=(4,), kernel="matern52", seed=0))
    parts.mean_module.weight.data.fill_(0.3)
    return parts


def ragged(known_noise=()):
    tasks = []
    for name, (X, Y) in FAMILY.sources((9, 1, 12)).items():
        noise = torch.full_like(Y, 0.2) if name in known_noise else None
        tasks.append((X, (Y - 50) / 10) if noise is None else (X, (Y - 50) / 10, noise))
    return PaddedTasks.from_datasets(as_datasets(tasks))


def naive_nll(gp, X, Y, noise):
    mean, covariance = gp.mean_module(X), gp.covar_module(X).to_dense()
    covariance = covariance + torch.diag(noise.expand(len(X)))
    return -MultivariateNormal(mean, covariance).log_prob(Y)


@pytest.mark.parametrize("known_noise", [(), ("task 0",), ("task 0", "task 1", "task 2")])
@pytest.mark.parametrize("chunk_elements", [1, 200, 2**20])
def test_full_nll(known_noise, chunk_elements, monkeypatch):
    monkeypatch.setattr(objectives, "CHUNK_ELEMENTS", chunk_elements)
    gp, tasks = parts(), ragged(known_noise)
    expected = [
        naive_nll(gp, X[mask], Y[mask], Yvar[mask] if fixed else gp.noise)
        for X, Y, Yvar, mask, fixed in zip(
            tasks.X, tasks.Y, tasks.Yvar, tasks.mask, tasks.fixed_noise, strict=True
        )
    ]
    values = torch.cat(list(TaskNLL(tasks, 50, 50).of_tasks(gp)))
    torch.testing.assert_close(values.sort().values, torch.stack(expected).sort().values)
    loss = SourceLoss(TaskNLL(tasks, 50, 50), None).full(gp)
    torch.testing.assert_close(loss, torch.stack(expected).mean().detach())
    expected_gradients = torch.autograd.grad(
        torch.stack(expected).mean(), list(gp.parameters()), allow_unused=True
    )
    for parameter, gradient in zip(gp.parameters(), expected_gradients, strict=True):
        expected_gradient = torch.zeros_like(parameter) if gradient is None else gradient
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, expected_gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("known_noise", [(), ("task 0",)])
def test_a_sample_of_everything_is_everything(known_noise):
    gp, tasks = parts(), ragged(known_noise)
    loss = TaskNLL(tasks, batch_size=50, task_batch_size=50)
    sampled = loss.sampled(gp, step=7)
    torch.testing.assert_close(sampled, torch.cat(list(loss.of_tasks(gp))).mean())


def test_ekl_of_groups_of_different_sizes_and_noise():
    A, B = FAMILY.inputs(5), FAMILY.inputs(3, seed=1)
    inputs = [A, torch.cat([B, A]), A.flip(0), B]
    shifts = (0.1, 0.5, 0.9, 0.3)
    outcomes = [FAMILY.value(X, s) / 10 for X, s in zip(inputs, shifts, strict=True)]
    noise = torch.full_like(outcomes[1], 0.4)
    data = list(zip(inputs, outcomes, strict=True))
    tasks = PaddedTasks.from_datasets(as_datasets([data[0], (*data[1], noise), *data[2:]]))
    gp, loss = parts(), GroupEKL.of(tasks, find_matching_groups(inputs))
    expected = []
    for X, Y, own_noise in (
        (A, [outcomes[0], outcomes[1][3:], outcomes[2].flip(0)], (2 * gp.noise + 0.4) / 3),
        (B, [outcomes[1][:3], outcomes[3]], (gp.noise + 0.4) / 2),
    ):
        covariance = gp.covar_module(X).to_dense() + torch.eye(len(X)) * own_noise
        empirical = EmpiricalGaussian.of([torch.cat(Y, dim=-1)])
        expected.append(ekl(gp.mean_module(X)[None], covariance[None], empirical))
    torch.testing.assert_close(loss.full(gp), torch.cat(expected).mean())


def test_both_objectives_at_once():
    X = FAMILY.inputs(6)
    data = [(X, FAMILY.value(X, shift)) for shift in (0.1, 0.4, 0.9)]
    options = PretrainingOptions(batch_size=50)
    gp = parts()
    losses = {}
    for objective in ("nll", "ekl", "nll+ekl"):
        tasks = TrainingTasks.of(as_datasets(data), "pooled", None, objective, nll_weight=0.3)
        loss = tasks.loss(options, None, None, 100)
        losses[objective] = loss.full(gp)
        sampled = loss.sampled(gp, step=0)
        torch.testing.assert_close(sampled, losses[objective])
    torch.testing.assert_close(losses["nll+ekl"], losses["ekl"] + 0.3 * losses["nll"])


def test_groups_of_equal_tasks_are_left_out():
    X, other = FAMILY.inputs(4), FAMILY.inputs(3, seed=1)
    same = [(X, FAMILY.value(X))] * 2
    different = [(other, FAMILY.value(other, shift)) for shift in (0.0, 0.5)]
    tasks = PaddedTasks.from_datasets(as_datasets(same + different))
    inputs = [X[mask] for X, mask in zip(tasks.X, tasks.mask, strict=True)]
    assert GroupEKL.of(tasks, find_matching_groups(inputs)).X.shape == (1, 3, 2)
    only_same = PaddedTasks.from_datasets(as_datasets(same))
    with pytest.raises(InputDataError, match="equal outcomes"):
        GroupEKL.of(only_same, find_matching_groups([X, X]))
