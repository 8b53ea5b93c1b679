from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS
from botorch_transfer.pretraining.source_gps.map_fit import (
    LogPrior,
    MAPObjective,
    negative_log_likelihood,
)
from botorch_transfer.pretraining.tasks import PaddedTasks
from tests.kernels.tasks import KERNELS, points
from tests.pretraining.single_task import build_mll, negative_log_posterior, set_theta
from tests.pretraining.tasks import draw_data, padded

TASKS = padded(draw_data([6, 1, 9, 4], known_noise=[2]))


def draw_theta(rows: int, dim: int = 2, seed: int = 0) -> Tensor:
    """Logarithms of hyperparameters: lengthscales, outputscale, noise."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor([0.5] * dim + [1.0, 5e-3], dtype=torch.double).log()
    return start + 0.5 * torch.randn(rows, dim + 2, generator=generator, dtype=torch.double)


def objective(tasks: PaddedTasks, kernel: str = "rbf", spec=SOURCE_HYPERPARAMETERS) -> MAPObjective:
    return MAPObjective(tasks, kernel, LogPrior(spec, tasks.X.shape[-1]))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "spec",
    [SOURCE_HYPERPARAMETERS, RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS.without_priors()],
    ids=["source", "residual", "none"],
)
def test_equals_gpytorch(kernel: str, spec) -> None:
    theta = draw_theta(4)
    value, gradient = objective(TASKS, kernel, spec)(theta, torch.arange(4))
    for index in range(4):
        mll = build_mll(TASKS, index, kernel, spec)
        parameters = set_theta(mll, theta[index])
        expected = negative_log_posterior(mll)
        torch.testing.assert_close(value[index], expected.detach(), rtol=1e-8, atol=1e-8)
        parts = [part.flatten() for part in torch.autograd.grad(expected, parameters)]
        known_noise = [torch.zeros(1).double()] if TASKS.fixed_noise[index] else []
        torch.testing.assert_close(
            gradient[index], torch.cat([*parts, *known_noise]), rtol=1e-6, atol=1e-6
        )


def check_gradient(tasks: PaddedTasks, kernel: str, theta: Tensor) -> None:
    """Compares the gradient with central differences."""
    function, index = objective(tasks, kernel), torch.arange(len(theta))
    value, gradient = function(theta, index)
    assert value.isfinite().all()
    h = 1e-5
    for column in range(theta.shape[-1]):
        step = torch.zeros_like(theta)
        step[:, column] = h
        difference = (function(theta + step, index)[0] - function(theta - step, index)[0]) / (2 * h)
        torch.testing.assert_close(gradient[:, column], difference, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(KERNELS),
    st.sets(st.integers(0, 3)),
    st.integers(0, 100),
)
def test_gradient(
    sizes: list[int], dim: int, kernel: str, known_noise: set[int], seed: int
) -> None:
    tasks = padded(draw_data(sizes, dim, tuple(known_noise)))
    check_gradient(tasks, kernel, draw_theta(len(sizes), dim, seed))


@pytest.mark.parametrize("kernel", KERNELS)
def test_odd_tasks(kernel: str) -> None:
    X = torch.rand(5, 2, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True)
    odd = {
        "constant": (X, torch.ones_like(Y)),
        "single": (X[:1], Y[:1]),
        "duplicates": (X[:2].repeat(3, 1), Y[:2].repeat(3, 1)),
        "contradictory": (X[:1].repeat(4, 1), Y[:4]),
        "constant input": (torch.cat([X[:, :1], torch.ones_like(Y)], dim=-1), Y),
    }
    tasks = padded(odd)
    check_gradient(tasks, kernel, draw_theta(len(odd)))


@given(st.lists(st.integers(1, 7), min_size=2, max_size=4), st.sampled_from(KERNELS), st.booleans())
def test_padding_changes_nothing(sizes: list[int], kernel: str, known_noise: bool) -> None:
    data = draw_data(sizes, known_noise=[0] if known_noise else [])
    theta = draw_theta(len(sizes))
    value, gradient = objective(padded(data), kernel)(theta, torch.arange(len(sizes)))
    for index, (name, task) in enumerate(data.items()):
        alone = objective(padded({name: task}), kernel)(theta[[index]], torch.tensor([0]))
        torch.testing.assert_close(value[[index]], alone[0], rtol=1e-12, atol=1e-11)
        torch.testing.assert_close(gradient[[index]], alone[1], rtol=1e-10, atol=1e-10)


def test_rows_name_their_task() -> None:
    theta, index = draw_theta(5), torch.tensor([2, 0, 2, 1, 0])
    value, gradient = objective(TASKS)(theta, index)
    for row in range(5):
        alone = objective(TASKS)(theta[[row]], index[[row]])
        torch.testing.assert_close(value[[row]], alone[0])
        torch.testing.assert_close(gradient[[row]], alone[1])


def test_known_noise_ignores_its_hyperparameter() -> None:
    theta = draw_theta(1)
    other = theta.clone()
    other[:, -1] += 1.0
    index = torch.tensor([2])
    value, gradient = objective(TASKS)(theta, index)
    assert torch.equal(objective(TASKS)(other, index)[0], value)
    assert gradient[0, -1] == 0.0


def test_likelihood_of_one_point() -> None:
    tasks = PaddedTasks(
        X=torch.zeros(1, 1, 1).double(),
        Y=torch.full((1, 1), 3.0).double(),
        Yvar=torch.zeros(1, 1).double(),
        mask=torch.ones(1, 1).bool(),
        fixed_noise=torch.zeros(1).bool(),
    )
    theta = torch.tensor([[1.0, 2.0, 0.01]]).double().log()
    value, _ = negative_log_likelihood(theta, tasks, "rbf")
    expected = -torch.distributions.Normal(0.0, math.sqrt(2.01)).log_prob(torch.tensor(3.0))
    assert value.item() == pytest.approx(expected.item())


def test_covariance_besides_the_kernel() -> None:
    tasks = padded(draw_data([5]))
    root = torch.rand(1, 5, 5, dtype=torch.double)
    extended = PaddedTasks(**{**vars(tasks), "covariance": root @ root.mT})
    theta = draw_theta(1)
    value, _ = negative_log_likelihood(theta, extended, "rbf")
    mll = build_mll(tasks, 0, "rbf", SOURCE_HYPERPARAMETERS)
    set_theta(mll, theta[0])
    signal = mll.model.covar_module(tasks.X[0]).to_dense()
    covariance = signal + extended.covariance[0] + theta[0, -1].exp() * torch.eye(5).double()
    mvn = torch.distributions.MultivariateNormal(torch.zeros(5).double(), covariance)
    torch.testing.assert_close(value[0], -mvn.log_prob(tasks.Y[0]), rtol=1e-6, atol=1e-6)
    check_gradient(extended, "rbf", theta)


def test_neither_graph_nor_change_of_arguments() -> None:
    theta = draw_theta(4).requires_grad_()
    before = TASKS.X.clone()
    value, gradient = objective(TASKS)(theta.detach(), torch.arange(4))
    assert not value.requires_grad
    assert not gradient.requires_grad
    assert torch.equal(TASKS.X, before)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_only_the_row_that_cannot_be_factorized_is_undefined() -> None:
    data = draw_data([4, 4, 4])
    data["task 1"][0][2] = 1e200
    tasks = padded(data)
    value, gradient = objective(tasks)(draw_theta(3), torch.arange(3))
    assert value.isnan().tolist() == [False, True, False]
    assert gradient.isnan().any(dim=-1).tolist() == [False, True, False]


def test_jitter_where_noise_is_too_small() -> None:
    X = torch.full((3, 1), 0.5, dtype=torch.double)
    tasks = padded([(X, points(3, 1), torch.full_like(X, 1e-20))])
    # Exactly singular, whatever the rounding: all ones.
    theta = torch.tensor([[0.0, 0.0, -5.0]], dtype=torch.double)
    with pytest.warns(NumericalWarning, match="added jitter"):
        value, gradient = objective(tasks)(theta, torch.tensor([0]))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda() -> None:
    theta, index = draw_theta(4), torch.arange(4)
    there = PaddedTasks(**{n: t if t is None else t.cuda() for n, t in vars(TASKS).items()})
    ours = objective(there)(theta.cuda(), index.cuda())
    for value, expected in zip(ours, objective(TASKS)(theta, index), strict=True):
        torch.testing.assert_close(value.cpu(), expected, atol=1e-8, rtol=1e-8)
