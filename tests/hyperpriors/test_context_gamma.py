from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.optim.utils import sample_all_priors
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from botorch_transfer.pretraining.hyperprior.network import ContextGammaPrior, ContextNetwork

CONTEXTS = torch.tensor([[0.0, 2.0], [1.0, 5.0], [1.0, 14.0]], dtype=torch.double)


@pytest.fixture
def network() -> ContextNetwork:
    return ContextNetwork(CONTEXTS, torch.tensor([3.0, 6.0], dtype=torch.double))


def test_density_is_that_of_each_inputs_gamma(network):
    prior = ContextGammaPrior(network, CONTEXTS)
    value = torch.rand(4, 1, 3, dtype=torch.double) + 0.1
    shape, rate = network(CONTEXTS)
    expected = torch.distributions.Gamma(shape, rate).log_prob(value)
    torch.testing.assert_close(prior.log_prob(value), expected)
    assert isinstance(prior, GammaPrior)


def test_nothing_of_the_network_is_left_to_fit(network):
    prior = ContextGammaPrior(network, CONTEXTS)
    assert list(prior.parameters()) == []
    assert not prior.concentration.requires_grad


@pytest.mark.parametrize("dim", [1, 3])
def test_on_a_kernel(network, dim):
    X = torch.rand(4, dim, dtype=torch.double)
    prior = ContextGammaPrior(network, CONTEXTS[:dim])
    kernel = ScaleKernel(MaternKernel(ard_num_dims=dim, lengthscale_prior=prior))
    model = SingleTaskGP(X, X.sum(-1, keepdim=True), covar_module=kernel)
    torch.manual_seed(0)
    sample_all_priors(model)
    lengthscale = model.covar_module.base_kernel.lengthscale
    assert lengthscale.shape == (1, dim)
    assert len(lengthscale.unique()) == dim
    for twin in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied = twin.covar_module.base_kernel.lengthscale_prior
        assert torch.equal(copied.rate, prior.rate)
    single = deepcopy(model).float().covar_module.base_kernel.lengthscale_prior
    assert single.rate.dtype == torch.float


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3)])
def test_another_kind_of_context_is_refused(network, shape):
    with pytest.raises(ValueError, match="trained on contexts of 2 numbers"):
        ContextGammaPrior(network, torch.zeros(shape))
