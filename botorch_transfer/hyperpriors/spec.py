"""Hyperpriors, starting values and bounds of GP hyperparameters, in one place.

The defaults are those of ScaML-GP (Appendix C.5 of [Tighineanu2023scaml]_): source tasks are
standardized one by one, so their outputscale has BoTorch's classic prior; the target's residual is
what the sources leave over, so its scale is small and little is known of it.

Start and bounds of a hyperparameter, from its hyperprior.

The target's own kernel: what its sources leave over.

The target's default likelihoods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior, Prior, UniformPrior
from scipy import stats
from torch import Tensor

from botorch_transfer.kernels.stationary import stationary_function


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

_LOWEST, _HIGHEST = 1e-4, 1e3
"""Bounds relative to the mean."""

_CORNER = 0.01
"""The quantile below which a density that is unbounded at zero is cut off."""


def start_and_bounds(prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """Finds where to start, and in which bounds to stay, when a hyperparameter is fitted.

    The start is the hyperprior's mean. A Gamma density of a shape of at most one has its maximum at
    zero, where a hyperparameter would end up without enough data: its lowest percentile is cut off.

    Args:
        prior: A Gamma or uniform prior, univariate or of ``d`` independent hyperparameters.

    Returns:
        Start, lower and upper bound, tensors of the shape of the prior.

    Example:
        >>> start, lower, upper = start_and_bounds(GammaPrior(2.0, 4.0))
        >>> float(start)
        0.5
    """
    if isinstance(prior, UniformPrior):
        low, high = torch.as_tensor(prior.low), torch.as_tensor(prior.high)
        return (low + high) / 2, low, high
    assert isinstance(prior, GammaPrior)
    shape, mean = prior.concentration.detach(), prior.mean.detach()
    quantile = stats.gamma.ppf(_CORNER, shape.double().cpu().numpy(), scale=1.0)
    corner = torch.as_tensor(quantile).to(mean) / shape * mean
    lower = torch.where(shape > 1, _LOWEST * mean, torch.maximum(corner, _LOWEST * mean))
    return mean, lower, _HIGHEST * mean


def residual_kernel(
    dim: int,
    batch_shape: torch.Size = torch.Size(),  # noqa: B008
    hyperparameters: GPHyperparameters = RESIDUAL_HYPERPARAMETERS,
    kernel: str = "rbf",
) -> ScaleKernel:
    """Builds a scaled stationary kernel with a lengthscale for each input.

    Args:
        dim: The number of inputs ``d``.
        batch_shape: The batch shape of the target model.
        hyperparameters: Hyperpriors, starts and bounds; the defaults are those of ScaML-GP's
            target.
        kernel: The stationary kernel's name.

    Returns:
        The kernel, at its starting values.

    Example:
        >>> residual_kernel(2).outputscale
        tensor(0.1000, grad_fn=<...>)
    """
    lengthscale, outputscale = hyperparameters.lengthscale, hyperparameters.outputscale
    return ScaleKernel(
        stationary_function(kernel).make_kernel(
            ard_num_dims=dim,
            batch_shape=batch_shape,
            lengthscale_prior=lengthscale.prior(),
            lengthscale_constraint=lengthscale.constraint(),
        ),
        batch_shape=batch_shape,
        outputscale_prior=outputscale.prior(),
        outputscale_constraint=outputscale.constraint(),
    )


_TARGET_NOISE = RESIDUAL_HYPERPARAMETERS.noise


class UnseenNoiseLikelihood(FixedNoiseGaussianLikelihood):
    """The likelihood of known noise before there is any observation.

    BoTorch takes the mean of the known noise for that of new observations. Without any, the
    starting value of an inferred noise stands in.

    Args:
        noise: A ``batch_shape x 0`` tensor.
        stand_in: The noise variance that stands in.

    Example:
        >>> UnseenNoiseLikelihood(torch.zeros(0)).noise
        tensor([0.0010])
    """

    def __init__(self, noise: Tensor, stand_in: float = _TARGET_NOISE.start) -> None:
        super().__init__(noise)
        self.stand_in = stand_in

    @property
    def noise(self) -> Tensor:
        """The noise variances: those of the points, or the one that stands in for them."""
        known = self.noise_covar.noise
        if known.shape[-1] > 0:
            return known
        return known.new_full((*known.shape[:-1], 1), self.stand_in)


def default_likelihood(
    batch_shape: torch.Size, train_Yvar: Tensor | None, noise: Hyperparameter = _TARGET_NOISE
) -> GaussianLikelihood | UnseenNoiseLikelihood | None:
    """Builds the target's default likelihood.

    Args:
        batch_shape: The batch shape of the target model.
        train_Yvar: The ``batch_shape x n x 1`` known noise variances, if they are known.
        noise: Hyperprior, start and bounds of an inferred noise; by default those of ScaML-GP.

    Returns:
        A Gaussian likelihood; with known noise ``None``, where BoTorch's own default will do.
    """
    if train_Yvar is None:
        return residual_likelihood(batch_shape, noise)
    if train_Yvar.shape[-2] == 0:
        return UnseenNoiseLikelihood(train_Yvar.squeeze(-1), noise.start)
    return None


def residual_likelihood(
    batch_shape: torch.Size, noise: Hyperparameter = _TARGET_NOISE
) -> GaussianLikelihood:
    """Builds a likelihood with inferred noise.

    Args:
        batch_shape: The batch shape of the target model.
        noise: Its hyperprior, start and bounds; by default those of ScaML-GP.

    Returns:
        A Gaussian likelihood.
    """
    return GaussianLikelihood(
        noise_prior=noise.prior(), noise_constraint=noise.constraint(), batch_shape=batch_shape
    )
