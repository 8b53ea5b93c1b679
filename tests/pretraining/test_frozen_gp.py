"""A frozen GP: what it holds, and what models take of it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior

from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior
from tests.pretraining.pretrained import FAMILY, PRESETS, TEST_X, assert_same, fit, own_modules


@pytest.fixture(params=PRESETS)
def preset(request):
    return PRESETS[request.param]()


def test_an_untrained_prior_is_the_gp_as_built():
    kernel = ScaleKernel(RBFKernel())
    mean = ConstantMean()
    mean.constant = 3.0
    model = PretrainedGP(
        torch.zeros(0, 2).double(), torch.zeros(0, 1).double(), PretrainedPrior(mean, kernel, dim=2)
    )
    posterior = model.posterior(TEST_X)
    torch.testing.assert_close(posterior.mean, torch.full((5, 1), 3.0).double())
    expected = kernel.double()(TEST_X).to_dense()
    torch.testing.assert_close(posterior.distribution.covariance_matrix, expected)
    assert not hasattr(model, "outcome_transform")


def test_mean_and_kernel_read_one_network():
    prior = fit(PretrainedPrior.hyperbo(2, hidden=(4,)))
    assert prior.parts.mean_module.network is prior.parts.covar_module.network
    names = [name for name, _ in prior.named_buffers() if "network" in name]
    assert len(names) == 2


def test_what_the_user_froze_stays():
    kernel = RBFKernel()
    kernel.lengthscale = 0.7
    kernel.requires_grad_(False)
    prior = fit(PretrainedPrior(ConstantMean(), kernel, dim=2))
    torch.testing.assert_close(prior.parts.covar_module.lengthscale.item(), 0.7)
    assert float(prior.parts.mean_module.constant) != 0


def test_nothing_to_fit():
    modules = ConstantMean(), RBFKernel()
    for module in modules:
        module.requires_grad_(False)
    prior = PretrainedPrior(*modules, dim=2)
    prior.trainable = dict.fromkeys(prior.trainable, False)  # nor the noise
    fit(prior)
    assert prior.learning_curve.loss == []
    assert float(prior.noise) == pytest.approx(1e-2)


def test_hyperpriors_are_not_kept():
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)))
    prior = fit(PretrainedPrior(ConstantMean(), kernel, dim=2))
    model = PretrainedGP(*FAMILY.target(3), prior)
    assert list(model.named_priors()) == []


def test_moving_or_loading_a_view_leaves_the_prior(preset):
    prior = fit(preset)
    before = {name: tensor.clone() for name, tensor in prior.state_dict().items()}
    view, copied = prior.view(), deepcopy(prior)
    view.load_state_dict(
        {n: t + 0.1 if t.is_floating_point() else t for n, t in view.state_dict().items()}
    )
    prior.view().float()
    for name, tensor in prior.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == before[name].dtype
    assert not torch.equal(view.covariance(TEST_X), prior.covariance(TEST_X))
    assert_same(copied, prior)


def test_each_member_of_a_batch_has_a_gp_of_its_own(preset):
    prior, shape = fit(preset), torch.Size([3, 2])
    for is_fitted in (False, True):
        parts, one = prior.gp(shape, is_fitted), prior.gp(torch.Size(), is_fitted)
        assert parts.covar_module.batch_shape == shape
        for (name, parameter), single in zip(
            parts.named_parameters(), one.parameters(), strict=True
        ):
            assert parameter.shape == shape + single.shape, name
            assert torch.equal(parameter, single.expand_as(parameter))
            assert parameter.requires_grad is is_fitted


def test_frozen_modules_of_the_users_own_serve_all_members():
    prior = fit(PretrainedPrior(*own_modules(), dim=2))
    parts = prior.gp(torch.Size([3]), fit=False)
    assert parts.likelihood.noise.shape == (3, 1)
    assert parts.covar_module.batch_shape == torch.Size()
    assert prior.gp(torch.Size([3]), fit=True).covar_module.batch_shape == (3,)


@pytest.mark.parametrize("noise", [0.0, -1.0, 1e-6, torch.inf, torch.nan])
def test_too_little_noise_is_refused(noise):
    with pytest.raises(ValueError, match=f"noise={noise} must be a variance of more than 1e-06"):
        PretrainedPrior.stationary(2, noise=noise)


def test_inputs_of_another_dimension_are_refused(preset):
    for evaluate in (preset.mean, preset.covariance):
        with pytest.raises(BotorchTensorDimensionError, match=r"3 columns, but.*built for 2"):
            evaluate(torch.rand(4, 3))


def test_repr():
    assert "tasks=3, points=27, inputs=2" in repr(fit(PRESETS["stationary"]()))
