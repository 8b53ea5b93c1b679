"""Hyperpriors that are quick to learn, and one that is specified."""

import torch
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior

from botorch_transfer.pretraining import Hyperprior, NetworkOptions
from tests.hyperprior.domains import draw_domains

QUICK = {"num_restarts": 0, "network": NetworkOptions(num_steps=20, learning_rate=0.1)}
KINDS = ("mphd", "universal", "empirical")


def fit(kind="universal", domains=None, **options) -> Hyperprior:
    return Hyperprior.fit(domains or draw_domains(), kind=kind, **{**QUICK, **options})


def specified(**options) -> Hyperprior:
    priors = {
        "constant": NormalPrior(2.0, 0.5),
        "lengthscale": GammaPrior(10.0, 30.0),
        "outputscale": GammaPrior(2.0, 4.0),
        "noise": UniformPrior(1e-4, 1e-2),
    }
    return Hyperprior.specified(**{**priors, **options})


def assert_equal_states(left: Hyperprior, right: Hyperprior) -> None:
    expected = right.state_dict()
    assert left.state_dict().keys() == expected.keys()
    for name, tensor in left.state_dict().items():
        assert torch.equal(tensor.nan_to_num(), expected[name].nan_to_num()), name
    assert repr(left) == repr(right)
