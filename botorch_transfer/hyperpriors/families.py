"""The families of distributions that a hyperparameter's hyperprior may be of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.priors import GammaPrior, NormalPrior, Prior, UniformPrior
from torch import Tensor

_FAMILIES: dict[str, tuple[Callable[..., Prior], tuple[str, str]]] = {
    "gamma": (GammaPrior, ("concentration", "rate")),
    "normal": (NormalPrior, ("loc", "scale")),
    "uniform": (UniformPrior, ("low", "high")),
}


def make_prior(family: str, parameters: Tensor) -> Prior:
    """Builds a GPyTorch prior.

    Args:
        family: ``"gamma"`` (shape, rate), ``"normal"`` (mean, standard deviation) or ``"uniform"``
            (bounds).
        parameters: A tensor of its two parameters.

    Returns:
        The prior.

    Example:
        >>> make_prior("gamma", torch.tensor([3.0, 6.0])).mean
        tensor(0.5000)
    """
    first, second = parameters.detach().clone().unbind()
    # Outside of a bounded distribution the density is zero, which is no error.
    return _FAMILIES[family][0](first, second, validate_args=False)


def describe_prior(prior: Prior) -> tuple[str, Tensor]:
    """Says what :func:`make_prior` needs to build a prior again.

    Args:
        prior: A univariate Gamma, Normal or uniform prior.

    Returns:
        The family and a tensor of its two parameters.

    Raises:
        ValueError: If it is none of these.

    Example:
        >>> from gpytorch.priors import NormalPrior
        >>> describe_prior(NormalPrior(0.0, 2.0))
        ('normal', tensor([0., 2.]))
    """
    for family, (kind, names) in _FAMILIES.items():
        if type(prior) is kind and prior.batch_shape == torch.Size():
            return family, torch.stack([getattr(prior, name).detach() for name in names])
    raise ValueError(
        f"{type(prior).__name__} can't be a hyperprior here: give a univariate GammaPrior, "
        "NormalPrior or UniformPrior."
    )
