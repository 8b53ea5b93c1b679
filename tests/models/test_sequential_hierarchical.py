from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from botorch_transfer.models import JointHierarchicalGP, SequentialHierarchicalGP
from tests.hierarchy_twin import SIZES, draw_model, joint, prior_of, target_of
from tests.kernels.tasks import draw_tasks, points
from tests.models.contract import assert_same_posterior


@pytest.mark.parametrize("sizes", SIZES)
def test_sequential_is_joint_formula(sizes: tuple[int, ...]) -> None:
    model, levels = draw_model(SequentialHierarchicalGP, sizes, 5)
    A = points(6, 2)
    posterior = model.posterior(A)
    mean, covariance = joint([*levels, target_of(model)]).at(A)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        posterior.distribution.covariance_matrix, covariance, rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("num_points", [0, 4])
def test_sequential_is_joint_model(num_points: int) -> None:
    # The joint model standardizes each source task and gives no means to levels.
    levels = [
        replace(
            task,
            Y=(task.Y - task.Y.mean()) / task.Y.std(),
            mean=torch.zeros((), dtype=torch.double),
        )
        for task in draw_tasks(SIZES[1], 2)
    ]
    X = points(num_points, 2, seed=3)
    model = SequentialHierarchicalGP(X, X[:, :1].sin(), prior_of(levels, "covariance"))
    sources = [(task.X, task.Y.unsqueeze(-1), task.noise.unsqueeze(-1)) for task in levels]
    whole = JointHierarchicalGP(X, X[:, :1].sin(), sources, outcome_transform=None)
    for kernel, level in zip(whole.covar_modules, [*levels, target_of(model)], strict=True):
        kernel.initialize(outputscale=level.outputscale)
        kernel.base_kernel.lengthscale = level.lengthscale
    whole.likelihood.noise = model.likelihood.noise.detach()
    assert_same_posterior(model.posterior(points(6, 2)), whole.posterior(points(6, 2)))


def test_is_as_unsure_as_its_sources() -> None:
    model, _ = draw_model(SequentialHierarchicalGP, SIZES[1], 0)
    A = points(20, 2)
    residual = model.residual_covar_module.outputscale
    expected = model.prior.variance(A) + residual
    torch.testing.assert_close(model.posterior(A).variance.squeeze(-1), expected)
