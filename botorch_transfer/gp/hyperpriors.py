"""Hyperpriors, starting values and bounds of GP hyperparameters, and kernels built from them.

This module defines the defaults of source GPs and target models. Use its classes to give a model
other hyperpriors. The outcomes of each source task are standardized. Source GPs have the
hyperpriors of the ScaML-GP paper (Appendix C.5 of [Tighineanu2023scaml]_). The *residual* is the
difference between the target function and the function predicted from the sources. By default, the
residual has cautious hyperpriors (:func:`cautious_hyperparameters`). With one or two target points,
the paper's hyperpriors lead to a residual variance near zero, and predictions are overconfident.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
    arXiv:2312.00742.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from botorch.utils.constraints import LogTransformedInterval
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, Prior, UniformPrior
from scipy.special import gammaincinv
from torch import Tensor

from botorch_transfer.gp.likelihood import DerivedNoise
from botorch_transfer.gp.stationary import stationary_function

_FAMILIES: dict[str, tuple[Callable[..., Prior], tuple[str, str]]] = {
    "gamma": (GammaPrior, ("concentration", "rate")),
    "normal": (NormalPrior, ("loc", "scale")),
    "uniform": (UniformPrior, ("low", "high")),
}


def make_prior(family: str, parameters: Tensor) -> Prior:
    """Builds a GPyTorch prior from the name of its family and its two parameters.

    Args:
        family: ``"gamma"`` (shape, rate), ``"normal"`` (mean, standard deviation) or ``"uniform"``
            (bounds).
        parameters: A tensor of the prior's two parameters.

    Returns:
        The prior.

    Example:
        >>> make_prior("gamma", torch.tensor([3.0, 6.0])).mean
        tensor(0.5000)
    """
    first, second = parameters.detach().clone().unbind()
    # Validation would raise an error for a value outside the bounds. The density there is zero.
    return _FAMILIES[family][0](first, second, validate_args=False)


def describe_prior(prior: Prior) -> tuple[str, Tensor]:
    """Returns a prior's family and its two parameters, the arguments of :func:`make_prior`.

    Args:
        prior: A univariate Gamma, Normal or uniform prior.

    Returns:
        The family and a tensor of the prior's two parameters.

    Raises:
        ValueError: If the prior has another class or a batch shape.

    Example:
        >>> from gpytorch.priors import NormalPrior
        >>> describe_prior(NormalPrior(0.0, 2.0))
        ('normal', tensor([0., 2.]))
    """
    for family, (kind, names) in _FAMILIES.items():
        if type(prior) is kind and prior.batch_shape == torch.Size():
            return family, torch.stack([getattr(prior, name).detach() for name in names])
    text = f"{type(prior).__name__} is not supported as a hyperprior"
    raise ValueError(f"{text}: give a univariate GammaPrior, NormalPrior or UniformPrior.")


class _OfLogarithm(Prior, ABC):
    """Mixin that makes ``log_prob(x)`` of a GPyTorch prior return the log density of ``log(x)``."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Returns the log density of ``log(x)``: the log density of ``x``, plus ``log(x)``."""
        return super().log_prob(x) + x.log()

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Self:
        """Returns a copy of the prior that is expanded to another batch shape."""
        parts = (getattr(self, name) for name in self.arg_constraints)
        return type(self)(*(part.expand(batch_shape) for part in parts), validate_args=False)


class LogDensityGammaPrior(_OfLogarithm, GammaPrior):
    r"""A Gamma hyperprior whose ``log_prob(x)`` is the log density of ``log(x)``.

    Use this hyperprior for MAP fits. The mode of a density depends on the parametrization. A Gamma
    density with a shape of at most one has its mode at zero. With few points, MAP then ends at a
    lengthscale of zero, and the model treats the function as white noise. For any shape, the
    density of the logarithm has its mode at the mean of the Gamma distribution:

    .. math:: \log p(\log \theta) = \log \mathrm{Gamma}(\theta) + \log \theta.

    Samples come from the Gamma distribution.

    Example:
        >>> prior = LogDensityGammaPrior(0.5, 2.0)
        >>> values = torch.tensor([0.01, 0.25, 1.0])
        >>> int(prior.log_prob(values).argmax())
        1
    """


class LogDensityLogNormalPrior(_OfLogarithm, LogNormalPrior):
    r"""A log-normal hyperprior whose ``log_prob(x)`` is the log density of ``log(x)``.

    Like :class:`LogDensityGammaPrior`, this hyperprior is for MAP fits with few points. The mode of
    a broad log-normal density is near zero, at ``exp(loc - scale²)``. The density of the logarithm
    has its mode at the median, ``exp(loc)``. Samples come from the log-normal distribution.

    Example:
        >>> prior = LogDensityLogNormalPrior(0.0, 3.0)
        >>> int(prior.log_prob(torch.tensor([1e-4, 1.0, 1e4])).argmax())
        1
    """


def log_density_prior(prior: Prior) -> Prior:
    """Converts a Gamma hyperprior to a :class:`LogDensityGammaPrior`, for MAP fits.

    Args:
        prior: A hyperprior, univariate or of ``d`` independent hyperparameters.

    Returns:
        A :class:`LogDensityGammaPrior` for a Gamma hyperprior; any other hyperprior unchanged.

    Example:
        >>> log_density_prior(GammaPrior(0.5, 2.0))
        LogDensityGammaPrior()
    """
    if not isinstance(prior, GammaPrior):
        return prior
    shape, rate = prior.concentration.detach().clone(), prior.rate.detach().clone()
    return LogDensityGammaPrior(shape, rate, validate_args=False)


class LogPrior:
    """Log densities of the hyperpriors of several hyperparameters, with derivatives.

    Args:
        priors: Pairs of a hyperprior and the number of hyperparameters with this hyperprior. If the
            hyperprior is ``None``, the log density of these hyperparameters is zero.

    Example:
        >>> log_prior = LogPrior([(GammaPrior(2.0, 1.0), 3), (None, 1)])
        >>> value, derivative = log_prior(torch.ones(5, 4).double())
        >>> value[0], derivative[0]
        (tensor([-1., -1., -1.,  0.]...), tensor([0., 0., 0., 0.]...))
    """

    def __init__(self, priors: Sequence[tuple[Prior | None, int]]) -> None:
        columns: list[Tensor] = []
        self._others: list[tuple[slice, Prior]] = []
        for prior, size in priors:
            first = len(columns)
            coefficients = _coefficients(prior)
            if coefficients is None and prior is not None:
                self._others.append((slice(first, first + size), deepcopy(prior)))
            numbers = torch.zeros(5) if coefficients is None else coefficients
            columns += numbers.detach().double().cpu().reshape(-1, 5).expand(size, 5)
        self._coefficients = torch.stack(columns, dim=-1) if columns else torch.zeros(5, 0)

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the log density of each hyperparameter, and its derivative.

        Args:
            values: A ``P x k`` tensor of hyperparameters.

        Returns:
            The log densities and their derivatives, two ``P x k`` tensors.
        """
        self._coefficients = self._coefficients.to(values)  # moves to a GPU only once
        a, b, c, d, e = self._coefficients
        # The coefficients of the logarithm are zero for a hyperparameter that may be negative.
        positive = values.clamp_min(torch.finfo(values.dtype).tiny)
        logarithm = positive.log()
        density = a + (b + d * logarithm) * logarithm + (c + e * values) * values
        derivative = c + 2 * e * values + (b + 2 * d * logarithm) / positive
        for at, prior in self._others:
            with torch.enable_grad():
                part = values[:, at].detach().requires_grad_(True)
                found = prior.to(values).log_prob(part)
                if found.requires_grad:  # a uniform density has no derivative
                    (derivative[:, at],) = torch.autograd.grad(found.sum(), part)
            density[:, at] = found.detach()
        return density, derivative


def _coefficients(prior: Any) -> Tensor | None:
    """Returns the coefficients of a prior's log density ``a + b ln v + c v + d (ln v)² + e v²``.

    Returns:
        A tensor with the five coefficients in the last dimension. ``None`` if the log density does
        not have this form.
    """
    of_logarithm = 1.0 if isinstance(prior, _OfLogarithm) else 0
    if type(prior) in (GammaPrior, LogDensityGammaPrior):
        shape, rate = prior.concentration.double(), prior.rate.double()
        constant, zero = shape * rate.log() - torch.lgamma(shape), torch.zeros_like(shape)
        return torch.stack([constant, shape - 1 + of_logarithm, -rate, zero, zero], dim=-1)
    if type(prior) in (LogNormalPrior, LogDensityLogNormalPrior, NormalPrior):
        mean, precision = prior.loc.double(), prior.scale.double() ** -2
        constant = 0.5 * (precision.log() - math.log(2 * math.pi) - precision * mean.square())
        zero, slope, curvature = torch.zeros_like(mean), precision * mean, -0.5 * precision
        if type(prior) is NormalPrior:
            return torch.stack([constant, zero, slope, zero, curvature], dim=-1)
        return torch.stack([constant, slope - 1 + of_logarithm, zero, curvature, zero], dim=-1)
    return None


#: The name of a set of hyperpriors for the target's residual, its noise and the source weights.
HyperparameterChoice = Literal["cautious", "paper"]


@dataclass(frozen=True)
class Hyperparameter:
    """Hyperprior, starting value and bounds of one positive hyperparameter.

    Args:
        make_prior: Function that builds the hyperprior; ``None`` for maximum likelihood.
        start: The starting value of the optimization.
        lower: The lower bound, positive.
        upper: The upper bound.

    Raises:
        ValueError: Unless ``0 < lower <= start <= upper < inf``.

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
                f"start={self.start}, lower={self.lower} and upper={self.upper} of a "
                "hyperparameter must satisfy 0 < lower <= start <= upper < inf."
            )

    def prior(self) -> Prior | None:
        """Builds a new GPyTorch prior; returns ``None`` if there is no hyperprior."""
        return None if self.make_prior is None else self.make_prior()

    def content(self) -> tuple[object, ...]:
        """Returns the hyperprior's parameters, the start and the bounds, for hashing."""
        prior, state = self.prior(), None
        if prior is not None:
            # Some of PyTorch's distributions keep their parameters as plain attributes.
            plain = {n: v for n, v in vars(prior).items() if isinstance(v, Tensor | float | int)}
            state = (type(prior).__qualname__, prior.state_dict(), plain)
        return (state, self.start, self.lower, self.upper)

    def constraint(self) -> LogTransformedInterval:
        """Builds a constraint ``lower <= value <= upper``; the raw parameter is ``log(value)``."""
        return LogTransformedInterval(self.lower, self.upper, initial_value=self.start)

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Samples starting values for restarts of the optimizer.

        Args:
            shape: The shape of the samples, which ends with the batch shape of the hyperprior.
            generator: A random number generator on the CPU.

        Returns:
            A double tensor of this shape: samples of the hyperprior, clamped to the bounds. Without
            a hyperprior, the samples are ``log(1 + exp(z))`` for standard normal ``z``.
        """
        if (prior := self.prior()) is None:
            normal = torch.randn(shape, generator=generator, dtype=torch.double)
            draws = torch.nn.functional.softplus(normal)
        else:
            seed = int(torch.randint(2**62, (1,), generator=generator))
            # Priors draw from the CPU's global random generator. The context restores its state.
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                # A hyperprior with a batch shape draws all its hyperparameters at once.
                draws = prior.sample(shape[: len(shape) - len(prior.batch_shape)]).double()
        return draws.clamp(self.lower, self.upper)


@dataclass(frozen=True)
class GPHyperparameters:
    """Hyperpriors, starting values and bounds of a GP with a scaled stationary kernel and noise.

    Args:
        lengthscale: The lengthscale of each input.
        outputscale: The signal variance.
        noise: The noise variance.

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
        """Returns a copy without hyperpriors, for a fit by maximum likelihood."""
        parts = (self.lengthscale, self.outputscale, self.noise)
        return GPHyperparameters(*(replace(part, make_prior=None) for part in parts))

    def log_prior(self, dim: int) -> LogPrior:
        """Builds the joint log density of all hyperpriors, for a GP with ``d`` lengthscales.

        Args:
            dim: The number of lengthscales ``d``.
        """
        return LogPrior([(part.prior(), size) for part, size in self.columns(dim)])

    def columns(self, dim: int) -> list[tuple[Hyperparameter, int]]:
        """Returns each hyperparameter and its number of elements for ``dim``-dimensional inputs."""
        return [(self.lengthscale, dim), (self.outputscale, 1), (self.noise, 1)]


_NOISE = Hyperparameter(partial(LogNormalPrior, -8.0, 2.0), start=1e-3, lower=1e-8, upper=10.0)
_RESIDUAL_BOUNDS = 1e-4, 1e2

#: Default hyperparameters of source GPs, whose outcomes are standardized task by task.
#:
#: The defaults are the values of the ScaML-GP paper, except for the upper bound of the noise
#: variance. The paper's bound, 0.01, is too low for many noisy points.
SOURCE_HYPERPARAMETERS = GPHyperparameters(
    lengthscale=Hyperparameter(partial(GammaPrior, 3.0, 6.0), start=0.5, lower=1e-4, upper=1e2),
    outputscale=Hyperparameter(partial(GammaPrior, 2.0, 0.15), start=1.0, lower=1e-4, upper=1e2),
    noise=_NOISE,
)

#: Hyperparameters of the ScaML-GP paper for the target's residual and noise. The residual is the
#: difference between the target function and the function predicted from the sources.
RESIDUAL_HYPERPARAMETERS = GPHyperparameters(
    lengthscale=Hyperparameter(partial(LogNormalPrior, 0.5, 1.5), start=1.0, lower=1e-4, upper=1e2),
    outputscale=Hyperparameter(
        partial(LogNormalPrior, -2.0, 3.0), start=0.1, lower=1e-4, upper=1e2
    ),
    noise=replace(_NOISE, upper=1e-2),
)

#: Default ratio of the residual's variance to the variance of the source outcomes.
TYPICAL_RESIDUAL = 0.15

#: Default ratio of the noise variance to the variance of the source outcomes.
TYPICAL_NOISE = math.exp(-5.0)


def cautious_hyperparameters(
    dim: int, variance: float = TYPICAL_RESIDUAL, noise: float = TYPICAL_NOISE
) -> GPHyperparameters:
    r"""Builds hyperpriors of the target's residual and noise, for few target points.

    The residual is the difference between the target function and the function predicted from the
    sources. The hyperpriors of the ScaML-GP paper are broad log-normal densities with modes near
    zero. With these hyperpriors, if the sources predict two target points well, MAP ends at a
    residual variance of ``1e-4``. Predictions at other inputs are then wrong by many standard
    deviations. The cautious hyperpriors are narrower. With a cautious hyperprior, MAP maximizes the
    density of the hyperparameter's logarithm, which has its mode at the median of the hyperprior.
    On the right-hand sides below, ``variance`` and ``noise`` are the arguments of this function:

    .. code-block:: text

        log outputscale ~ N(log variance, 0.7²)
        log lengthscale ~ N(½ log d - 2, 1)
        log noise       ~ N(log noise, 1.5²)

    Args:
        dim: The number of inputs ``d``.
        variance: The expected variance of the residual, see ``ConditionedPrior.residual_variance``.
        noise: The expected noise variance, see ``ConditionedPrior.noise_variance``.

    Returns:
        The hyperparameters. Each starting value is the median of the hyperprior.

    Raises:
        ValueError: If ``dim`` or ``variance`` is not positive.

    Example:
        >>> cautious_hyperparameters(4, variance=0.3).outputscale.start
        0.3
    """
    if dim < 1 or not variance > 0:
        raise ValueError(f"dim={dim} and variance={variance} must be positive.")
    return GPHyperparameters(
        lengthscale=_log_normal(0.5 * math.log(dim) - 2.0, 1.0, _RESIDUAL_BOUNDS),
        outputscale=_log_normal(math.log(variance), 0.7, _RESIDUAL_BOUNDS),
        noise=_log_normal(math.log(noise), 1.5, (_NOISE.lower, _NOISE.upper)),
    )


def _log_normal(loc: float, scale: float, bounds: tuple[float, float]) -> Hyperparameter:
    """Builds a hyperparameter with a :class:`LogDensityLogNormalPrior`.

    The starting value is the median of the hyperprior, clipped to the bounds.
    """
    lower, upper = bounds
    start = min(max(math.exp(loc), lower), upper)
    return Hyperparameter(partial(LogDensityLogNormalPrior, loc, scale), start, lower, upper)


def target_hyperparameters(
    hyperparameters: HyperparameterChoice, *typical: Any
) -> GPHyperparameters:
    """Returns hyperpriors, starting values and bounds of a target's residual kernel and noise.

    Args:
        hyperparameters: ``"cautious"`` for :func:`cautious_hyperparameters`, or ``"paper"`` for
            :data:`RESIDUAL_HYPERPARAMETERS`.
        *typical: The arguments of :func:`cautious_hyperparameters`.

    Returns:
        The hyperparameters.

    Raises:
        ValueError: If ``hyperparameters`` is neither ``"cautious"`` nor ``"paper"``.
    """
    if hyperparameters == "paper":
        return RESIDUAL_HYPERPARAMETERS
    if hyperparameters == "cautious":
        return cautious_hyperparameters(*typical)
    raise ValueError(f"hyperparameters= must be 'cautious' or 'paper', not {hyperparameters!r}.")


def weight_prior(hyperparameters: HyperparameterChoice, num_tasks: int) -> GammaPrior:
    """Builds the hyperprior of ScaML-GP's source weights.

    Args:
        hyperparameters: ``"paper"`` selects ``GammaPrior(1, 1)``, a density with the mode zero.
            ``"cautious"`` selects ``LogDensityGammaPrior(2, 2 * M)``, a density with the mode
            ``1 / M``, so that a single target point does not determine the weights.
        num_tasks: The number of source tasks ``M``.

    Returns:
        The hyperprior.
    """
    if hyperparameters == "paper":
        return GammaPrior(1.0, 1.0)
    return LogDensityGammaPrior(2.0, 2.0 * num_tasks)


#: Lower and upper bound of a hyperparameter, as multiples of the mean of the Gamma hyperprior.
_LOWEST, _HIGHEST = 1e-4, 1e3

#: Probability of values below the lower bound, for a Gamma density whose mode is zero.
_CORNER = 0.01


def start_and_bounds(prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the starting value and bounds of a hyperparameter from its hyperprior.

    The starting value is the hyperprior's mean. The bounds of a Gamma hyperprior are fixed
    multiples of the mean, with one exception. If the shape parameter is at most one, the density's
    mode is zero, and a fit to few points would end at the lower multiple, which is almost zero. In
    this case, the lower bound is the larger of the lower multiple and the hyperprior's first
    percentile. The bounds of a uniform hyperprior are the ends of its interval.

    Args:
        prior: A Gamma or uniform prior, univariate or of ``d`` independent hyperparameters.

    Returns:
        The starting value, the lower bound and the upper bound, three tensors with the prior's
        batch shape.

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
    quantile = gammaincinv(shape.double().cpu().numpy(), _CORNER)
    corner = torch.as_tensor(quantile).to(mean) / shape * mean
    lower = torch.where(shape > 1, _LOWEST * mean, torch.maximum(corner, _LOWEST * mean))
    return mean, lower, _HIGHEST * mean


def residual_kernel(
    dim: int,
    batch_shape: torch.Size = torch.Size(),  # noqa: B008
    hyperparameters: GPHyperparameters = RESIDUAL_HYPERPARAMETERS,
    kernel: str = "rbf",
) -> ScaleKernel:
    """Builds a scaled stationary kernel with a lengthscale for each input, for a target's residual.

    The residual is the difference between the target function and the function predicted from the
    sources.

    Args:
        dim: The number of inputs ``d``.
        batch_shape: The batch shape of the target model.
        hyperparameters: Hyperpriors, starting values and bounds; by default the values of the
            ScaML-GP paper.
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


def own_mean(batch_shape: torch.Size) -> ConstantMean:
    """Builds the prior mean of a GP that is fitted only to the target's data.

    Args:
        batch_shape: The batch shape of the target model.

    Returns:
        A constant mean with a standard normal hyperprior.
    """
    return ConstantMean(constant_prior=NormalPrior(0.0, 1.0), batch_shape=batch_shape)


class UnseenNoiseLikelihood(FixedNoiseGaussianLikelihood):
    """Gaussian likelihood that has known noise variances, and works without training points.

    For new observations, BoTorch uses the mean of the known noise variances. Without training
    points, there is no such mean, and this likelihood uses ``stand_in`` instead.

    Args:
        noise: A ``batch_shape x n`` tensor of noise variances; ``n`` may be zero.
        stand_in: The noise variance of new observations if there are no training points.

    Example:
        >>> UnseenNoiseLikelihood(torch.zeros(0)).noise
        tensor([0.0010])
    """

    def __init__(self, noise: Tensor, stand_in: float = _NOISE.start) -> None:
        super().__init__(noise)
        self.stand_in = stand_in

    @property
    def noise(self) -> Tensor:
        """The noise variances of the training points; without training points, ``stand_in``."""
        known = self.noise_covar.noise
        if known.shape[-1] > 0:
            return known
        return known.new_full((*known.shape[:-1], 1), self.stand_in)


def default_likelihood(
    batch_shape: torch.Size, train_Yvar: Tensor | None, noise: Hyperparameter = _NOISE
) -> GaussianLikelihood | UnseenNoiseLikelihood | None:
    """Builds the target's default likelihood.

    Args:
        batch_shape: The batch shape of the target model.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; ``None`` if the noise
            variance is inferred.
        noise: Hyperprior, starting value and bounds of an inferred noise variance.

    Returns:
        A Gaussian likelihood. ``None`` if the noise is known and there are training points, because
        BoTorch's default likelihood is then suitable.
    """
    if train_Yvar is None:
        likelihood = GaussianLikelihood()
        likelihood.noise_covar = DerivedNoise(noise.prior(), noise.constraint(), batch_shape)
        return likelihood
    if train_Yvar.shape[-2] == 0:
        return UnseenNoiseLikelihood(train_Yvar.squeeze(-1), noise.start)
    return None
