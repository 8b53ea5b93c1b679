"""The closed form of joint likelihoods against a dense one, differentiated automatically."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.joint.fit import TaskLayout, joint_nll_and_gradient

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
    layout = TaskLayout(sizes, support, independent, torch.device("cpu"))
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
    layout = TaskLayout((2, 2, 2, 2), INDEPENDENT, independent, torch.device("cpu"))
    value, _ = joint_nll_and_gradient(
        layout, X, Y, -leaves["noise"].detach(), leaves["covariances"].detach(), kernels
    )
    assert value.isnan()
