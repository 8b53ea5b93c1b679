"""HGP: its identity with SHGP, and what the order of tasks does."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean

from botorch_transfer import JointHierarchicalGP, SequentialHierarchicalGP, SourceHierarchy
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(6, seed=31)


def test_residual_kernel_is_the_targets():
    model = JointHierarchicalGP(*FAMILY.target(4), FAMILY.sources((8, 5)))
    assert model.residual_covar_module is model.covar_modules[-1]
    outputscale = model.residual_covar_module.outputscale
    torch.testing.assert_close(outputscale, torch.full_like(outputscale, 0.1))


def test_order_of_tasks_matters():
    history = list(FAMILY.sources((8, 5)).values())
    one = JointHierarchicalGP(*FAMILY.target(4), history)
    other = JointHierarchicalGP(*FAMILY.target(4), history[::-1])
    for model in (one, other):
        model.covar_modules[1].outputscale = 0.01
    assert not torch.allclose(one.posterior(TEST_X).mean, other.posterior(TEST_X).mean, rtol=1e-3)


def test_levels_that_add_nothing_are_one_task():
    """With the first kernel only, all tasks are observations of one function."""
    kernels = [ScaleKernel(RBFKernel()).double() for _ in range(3)]
    for kernel, outputscale in zip(kernels, (2.0, 1e-12, 1e-12), strict=True):
        kernel.outputscale = outputscale
        kernel.base_kernel.lengthscale = 0.4
    model = JointHierarchicalGP(*FAMILY.target(0), FAMILY.sources((6, 5)), covar_modules=kernels)
    points = model.conditional.points
    K = kernels[0](points.X).to_dense() + model.conditional.noise.variances(points).diag()
    expected = kernels[0](TEST_X, points.X).to_dense() @ torch.linalg.solve(K, points.Y)
    torch.testing.assert_close(model.mean_module(TEST_X), expected, rtol=1e-5, atol=1e-5)


def level(joint, task):
    """One level of the hierarchy as a GP of its own, in the joint model's units."""
    points = joint.conditional.points
    X, Y = points.X.split(points.sizes)[task], points.Y.split(points.sizes)[task]
    model = SingleTaskGP(
        X,
        Y.unsqueeze(-1),
        torch.full_like(Y.unsqueeze(-1), float(joint.source_noise.detach()[task])),
        covar_module=deepcopy(joint.covar_modules[task]),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    return model.double()


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("sizes", [(8,), (8, 5, 3, 6)])
def test_is_the_sequential_model(n, sizes):
    """Corollary 1: trained or not, SHGP and HGP are one model at equal hyperparameters."""
    X, Y = FAMILY.target(n)
    joint = JointHierarchicalGP(X, Y, FAMILY.sources(sizes))
    with torch.no_grad():
        for number, parameter in enumerate(joint.parameters()):
            parameter.add_(0.1 * (1 + number % 3))
    levels = [level(joint, task) for task in range(len(sizes))]
    stack = SourceHierarchy.from_models(levels, propagate="covariance")
    transform = joint.outcome_transform
    own_Y = (Y - transform.means) / transform.stdvs
    sequential = SequentialHierarchicalGP(X, own_Y, stack, outcome_transform=None)
    sequential.residual_covar_module.load_state_dict(joint.residual_covar_module.state_dict())
    sequential.likelihood.load_state_dict(joint.likelihood.state_dict())
    posterior, expected = joint.posterior(TEST_X), sequential.posterior(TEST_X)
    mean = expected.mean * transform.stdvs + transform.means
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-6, atol=1e-6)
    covariance = expected.distribution.covariance_matrix * transform.stdvs.square()
    torch.testing.assert_close(
        posterior.distribution.covariance_matrix, covariance, rtol=1e-6, atol=1e-6
    )
