from __future__ import annotations

import pytest
import torch
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior

from botorch_transfer.hyperpriors.priors import describe_prior, make_prior

PRIORS = [GammaPrior(2.0, 3.0), NormalPrior(2.0, 3.0), UniformPrior(2.0, 3.0)]


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_a_description_makes_the_same_prior(prior):
    family, parameters = describe_prior(prior)
    assert parameters.tolist() == [2.0, 3.0]
    twin = make_prior(family, parameters)
    assert type(twin) is type(prior)
    value = torch.tensor([2.1, 2.9])
    torch.testing.assert_close(twin.log_prob(value), prior.log_prob(value))


def test_outside_of_its_bounds_a_density_is_zero():
    prior = make_prior("uniform", torch.tensor([2.0, 3.0]))
    assert prior.log_prob(torch.tensor(4.0)) == -torch.inf


@pytest.mark.parametrize("prior", [LogNormalPrior(0.0, 1.0), NormalPrior(torch.zeros(2), 1.0)])
def test_other_distributions_are_refused(prior):
    with pytest.raises(ValueError, match=f"{type(prior).__name__} can't be a hyperprior here"):
        describe_prior(prior)
