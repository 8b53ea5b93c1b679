"""Pathwise sampling of joint models."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from gpytorch.kernels import MaternKernel

from botorch_transfer.models.pathwise.sources import JointPath
from tests.families import ShiftedSines
from tests.models.drawn_functions import assert_moments
from tests.models.joint_models import MODELS, build

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=31)
NUM = 2048


@pytest.mark.parametrize(("name", "n"), [("ScaML", 0), *((name, 3) for name in MODELS)])
def test_moments(name, n):
    model = build(name, n=n)
    sampler = partial(draw_kernel_feature_paths, num_features=1024)
    paths = draw_matheron_paths(model, torch.Size([NUM]), prior_sampler=sampler)
    assert_moments(paths(TEST_X), model.posterior(TEST_X))


def test_a_path_stays_what_it_is():
    model = build("ScaML")
    path = JointPath(model.conditional, torch.Size([2]), 64)
    before = path(TEST_X)
    for parameter in model.parameters():
        parameter.data.add_(0.3)
    assert torch.equal(path(TEST_X), before)


def test_paths_at_batches_of_inputs():
    path = JointPath(build("HGP").conditional, torch.Size([2]), 64)
    X = FAMILY.inputs(2, 4)
    values = path(X)
    for index in range(2):
        torch.testing.assert_close(values[index], path(X[index])[index])


def test_paths_are_smooth_functions():
    path = JointPath(build("WSGP").conditional, torch.Size([1]), 64)
    X = TEST_X.clone().requires_grad_()
    assert torch.autograd.gradcheck(path, X)


def test_paths_pass_near_precise_source_data():
    """In a hierarchy that adds next to nothing, the target's function is the source's."""
    model = build("HGP", num_tasks=1, n=0)
    model.covar_modules[1].outputscale = 1.1e-4
    points = model.conditional.points
    path = JointPath(model.conditional, torch.Size([64]), 512)
    assert (path(points.X) - points.Y).abs().mean() < 0.05


def test_other_kernels():
    kernels = [MaternKernel(1.5).double() for _ in range(3)]
    path = JointPath(build("ScaML", covar_modules=kernels).conditional, torch.Size([2]), 64)
    assert path(TEST_X).shape == (2, 5)
