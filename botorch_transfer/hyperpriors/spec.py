"""Hyperpriors, starting values and bounds of GP hyperparameters, in one place.

The defaults are those of ScaML-GP (Appendix C.5 of [Tighineanu2023scaml]_): source tasks are
standardized one by one, so their outputscale has BoTorch's classic prior; the target's residual is
what the sources leave over, so its scale is small and little is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch.priors import GammaPrior, LogNormalPrior, Prior
from torch import Tensor


@dataclass(frozen=True)
class Hyperparameter:
    """What is known of one positive hyperparameter before its task's data are seen.

    Args:
        make_prior: Builds its hyperprior, or ``None`` for maximum likelihood.
        start: The value from which optimization starts first.
        lower: The lower bound, positive.
        upper: The upper bound.

    Raises:
        ValueError: If not ``0 < lower <= start <= upper < inf``.

    Example:
        >>> Hyperparameter(None, start=1.0, lower=1e-4, upper=1e2).constraint()
        LogTransformedInterval(1.000E-04, 1.000E+02)
    """

    make_prior: Callable[[], Prior] | None
    start: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 < self.lower <= self.start <= self.upper < math.inf:
            raise ValueError(
                f"A hyperparameter has the start {self.start} and the bounds {self.lower} and "
                f"{self.upper}: they must satisfy 0 < lower <= start <= upper < inf."
            )

    def prior(self) -> Prior | None:
        """Builds a new hyperprior object."""
        return None if self.make_prior is None else self.make_prior()

    def content(self) -> tuple[object, ...]:
        """What makes two hyperparameters equal: hyperprior, start and bounds."""
        prior, state = self.prior(), None
        if prior is not None:
            # Some of PyTorch's distributions keep their parameters as plain attributes.
            plain = {n: v for n, v in vars(prior).items() if isinstance(v, Tensor | float | int)}
            state = (type(prior).__qualname__, prior.state_dict(), plain)
        return (state, self.start, self.lower, self.upper)

    def constraint(self) -> LogTransformedInterval:
        """Builds a new constraint, under which the logarithm is optimized within the bounds."""
        return LogTransformedInterval(self.lower, self.upper, initial_value=self.start)

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draws starting values for further optimizer starts.

        Args:
            shape: The shape of the draws.
            generator: A random number generator on the CPU.

        Returns:
            A double tensor of that shape: draws from the hyperprior, within the bounds; without a
            hyperprior, draws of ``log(1 + exp(N(0, 1)))``.
        """
        prior = self.prior()
        if prior is None:
            normal = torch.randn(shape, generator=generator, dtype=torch.double)
            draws = torch.nn.functional.softplus(normal)
        else:
            seed = int(torch.randint(2**62, (1,), generator=generator))
            # Hyperpriors draw from the global generator, on the CPU; no other one is touched.
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                draws = prior.sample(shape).double()
        return draws.clamp(self.lower, self.upper)

    def without_prior(self) -> Hyperparameter:
        """The same hyperparameter, to be fitted by maximum likelihood."""
        return replace(self, make_prior=None)


@dataclass(frozen=True)
class GPHyperparameters:
    """The hyperparameters of a GP with a scaled stationary kernel and Gaussian noise.

    Args:
        lengthscale: Each input dimension's lengthscale.
        outputscale: The signal variance.
        noise: The observation noise variance.

    Example:
        >>> from dataclasses import replace
        >>> noisier = Hyperparameter(None, start=0.01, lower=1e-8, upper=0.1)
        >>> replace(SOURCE_HYPERPARAMETERS, noise=noisier).noise.start
        0.01
    """

    lengthscale: Hyperparameter
    outputscale: Hyperparameter
    noise: Hyperparameter

    def without_priors(self) -> GPHyperparameters:
        """The same hyperparameters, to be fitted by maximum likelihood."""
        return GPHyperparameters(
            self.lengthscale.without_prior(),
            self.outputscale.without_prior(),
            self.noise.without_prior(),
        )


_NOISE = Hyperparameter(partial(LogNormalPrior, -8.0, 2.0), start=1e-3, lower=1e-8, upper=1e-2)

SOURCE_HYPERPARAMETERS = GPHyperparameters(
    lengthscale=Hyperparameter(partial(GammaPrior, 3.0, 6.0), start=0.5, lower=1e-4, upper=1e2),
    outputscale=Hyperparameter(partial(GammaPrior, 2.0, 0.15), start=1.0, lower=1e-4, upper=1e2),
    noise=_NOISE,
)
"""Defaults for source GPs, whose outcomes are standardized task by task."""

RESIDUAL_HYPERPARAMETERS = GPHyperparameters(
    lengthscale=Hyperparameter(partial(LogNormalPrior, 0.5, 1.5), start=1.0, lower=1e-4, upper=1e2),
    outputscale=Hyperparameter(
        partial(LogNormalPrior, -2.0, 3.0), start=0.1, lower=1e-4, upper=1e2
    ),
    noise=_NOISE,
)
"""Defaults for the target's residual, what the sources leave over."""
