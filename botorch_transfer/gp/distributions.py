"""GPyTorch priors of hyperparameters: families by name, densities of the logarithm, fits.

Read this for how a learned hyperprior is stored, why MAP uses the density of the logarithm, how a
fit evaluates many densities and their derivatives at once, and how a distribution is fitted to a
few estimates by maximum likelihood.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, Prior, UniformPrior
from scipy import stats
from torch import Tensor

logger = logging.getLogger(__name__)

MAX_SHAPE = 1e3
"""A Gamma with a larger shape (a standard deviation below 3 % of the mean) counts as degenerate."""

BROAD_SHAPE = 2.0
"""The shape of the broad Gamma: a standard deviation of 70 % of the mean, zero density at zero."""

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
    # A value outside of a bounded distribution has density zero; it is no error.
    return _FAMILIES[family][0](first, second, validate_args=False)


def describe_prior(prior: Prior) -> tuple[str, Tensor]:
    """Returns the arguments by which :func:`make_prior` builds a prior again.

    Args:
        prior: A univariate Gamma, Normal or uniform prior.

    Returns:
        The family and a tensor of its two parameters.

    Raises:
        ValueError: If it is another prior.

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


class LogDensityGammaPrior(GammaPrior):
    r"""A Gamma hyperprior whose ``log_prob`` is the density of the logarithm.

    Use it for MAP. The maximum of a density depends on the coordinates. A Gamma with shape at most
    one has its mode at zero. With few points, MAP then ends at a lengthscale of zero: the model
    takes the function for white noise and predicts nothing. The density of the logarithm has its
    maximum at the mean, whatever the shape, and the optimizer works with logarithms anyway:

    .. math:: \log p(\log \theta) = \log \mathrm{Gamma}(\theta) + \log \theta.

    Draws are those of the Gamma distribution.

    Example:
        >>> prior = LogDensityGammaPrior(0.5, 2.0)
        >>> values = torch.tensor([0.01, 0.25, 1.0])
        >>> int(prior.log_prob(values).argmax())
        1
    """

    def log_prob(self, x: Tensor) -> Tensor:
        """The logarithm of the density of ``log(x)``."""
        return super().log_prob(x) + x.log()

    def expand(self, expand_shape: torch.Size, _instance: Any = None) -> LogDensityGammaPrior:
        """Expands the distribution to another batch shape."""
        batch_shape = torch.Size(expand_shape)
        shape, rate = self.concentration.expand(batch_shape), self.rate.expand(batch_shape)
        return LogDensityGammaPrior(shape, rate, validate_args=False)


class LogDensityLogNormalPrior(LogNormalPrior):
    r"""A log-normal hyperprior whose ``log_prob`` is the density of the logarithm.

    Use it for MAP with few points, for the reasons that :class:`LogDensityGammaPrior` gives. A
    broad log-normal distribution has its mode near zero, at ``exp(loc - scale²)``; the density of
    the logarithm has its maximum at the median, ``exp(loc)``. Draws are those of the log-normal
    distribution.

    Example:
        >>> prior = LogDensityLogNormalPrior(0.0, 3.0)
        >>> int(prior.log_prob(torch.tensor([1e-4, 1.0, 1e4])).argmax())
        1
    """

    def log_prob(self, x: Tensor) -> Tensor:
        """The logarithm of the density of ``log(x)``."""
        return super().log_prob(x) + x.log()

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> LogDensityLogNormalPrior:
        """Expands the distribution to another batch shape."""
        shape = torch.Size(batch_shape)
        return LogDensityLogNormalPrior(self.loc.expand(shape), self.scale.expand(shape))


def log_density_prior(prior: Prior) -> Prior:
    """Turns a hyperprior into the one to register on a module that is fitted by MAP.

    Args:
        prior: A hyperprior, univariate or of ``d`` independent hyperparameters.

    Returns:
        For a Gamma, a :class:`LogDensityGammaPrior`; any other hyperprior itself.

    Example:
        >>> log_density_prior(GammaPrior(0.5, 2.0))
        LogDensityGammaPrior()
    """
    if not isinstance(prior, GammaPrior):
        return prior
    shape, rate = prior.concentration.detach().clone(), prior.rate.detach().clone()
    return LogDensityGammaPrior(shape, rate, validate_args=False)


def log_moments(prior: Prior) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a positive hyperparameter's logarithm.

    Args:
        prior: A Gamma, log-normal or uniform hyperprior, univariate or of ``d`` hyperparameters.

    Returns:
        Two double tensors of the hyperprior's shape.

    Raises:
        ValueError: If it is another hyperprior.

    Example:
        >>> log_moments(LogDensityLogNormalPrior(-6.0, 1.0))
        (tensor(-6., dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    if isinstance(prior, GammaPrior):
        shape, rate = prior.concentration.detach().double(), prior.rate.detach().double()
        return torch.digamma(shape) - rate.log(), torch.polygamma(1, shape).sqrt()
    if isinstance(prior, LogNormalPrior):
        return prior.loc.detach().double(), prior.scale.detach().double()
    if isinstance(prior, UniformPrior):
        low, high = (torch.as_tensor(end).double() for end in (prior.low, prior.high))
        log_low, log_high = low.clamp_min(torch.finfo(low.dtype).tiny).log(), high.log()
        mean = (high * log_high - low * log_low) / (high - low) - 1
        square = (high * (log_high - 1).square() - low * (log_low - 1).square()) / (high - low) + 1
        return mean, (square - mean.square()).sqrt()
    raise ValueError(f"The logarithm's moments of a {type(prior).__name__} are not known.")


class LogPrior:
    """The log densities of several hyperparameters, and their derivatives.

    Args:
        priors: The hyperprior of each group of hyperparameters and the group's size. No hyperprior
            counts as a constant density.

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
        # The logarithm of a hyperparameter that may be negative is not needed, and not defined.
        self._has_logarithm = (self._coefficients[1] != 0) | (self._coefficients[3] != 0)

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the densities.

        Args:
            values: A ``P x k`` tensor of hyperparameters.

        Returns:
            The log densities and their derivatives, two ``P x k`` tensors.
        """
        self._coefficients = self._coefficients.to(values)  # once to a GPU
        self._has_logarithm = self._has_logarithm.to(values.device)
        a, b, c, d, e = self._coefficients
        logarithm = torch.where(self._has_logarithm, values, 1.0).log()
        density = a + (b + d * logarithm) * logarithm + (c + e * values) * values
        derivative = c + 2 * e * values
        derivative += torch.where(self._has_logarithm, (b + 2 * d * logarithm) / values, 0.0)
        for at, prior in self._others:
            with torch.enable_grad():
                part = values[:, at].detach().requires_grad_(True)
                found = prior.to(values).log_prob(part)
            (derivative[:, at],) = torch.autograd.grad(found.sum(), part)
            density[:, at] = found.detach()
        return density, derivative


def _coefficients(prior: Any) -> Tensor | None:
    """A log density as ``a + b ln v + c v + d (ln v)² + e v²``.

    Returns:
        The five coefficients last; ``None`` if the density has another form.
    """
    of_logarithm = 1.0 if isinstance(prior, LogDensityGammaPrior | LogDensityLogNormalPrior) else 0
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


def fit_gamma(sample: Tensor, name: str = "hyperparameter") -> Tensor:
    """Fits a Gamma distribution by maximum likelihood.

    A few estimates may agree so well that the likelihood is unbounded, as that of a single one is.
    So narrow a distribution would keep every later fit at the same value. A broad Gamma with the
    same mean takes its place, and a warning is logged.

    Args:
        sample: An ``n`` tensor of positive values.
        name: The hyperparameter's name, for the log.

    Returns:
        A tensor of two: shape and rate, the arguments of ``GammaPrior``.

    Raises:
        ValueError: If there are no values, or one is not positive.

    Example:
        >>> fit_gamma(torch.tensor([1.0, 2.0, 4.0], dtype=torch.double))
        tensor([3.4..., 1.4...], dtype=torch.float64)
    """
    values = sample.detach().double().cpu()
    if len(values) == 0 or not bool((values > 0).all()):
        raise ValueError(f"A Gamma distribution of the {name} needs values, all of them positive.")
    mean = float(values.mean())
    # The best shape is about half the inverse of the mean's excess over the geometric mean.
    if float(mean * (-values.log().mean()).exp()) - 1 < 0.5 / MAX_SHAPE:
        _warn_of_agreement(values, name, "Gamma")
        return torch.tensor([BROAD_SHAPE, BROAD_SHAPE / mean]).to(sample)
    # SciPy's search starts at the right scale for values of order one.
    shape, _, scale = stats.gamma.fit((values / mean).numpy(), floc=0)
    return torch.tensor([shape, 1 / (scale * mean)], dtype=torch.double).to(sample)


def fit_normal(sample: Tensor, broad: float, name: str = "hyperparameter") -> Tensor:
    """Fits a Normal distribution by maximum likelihood.

    Args:
        sample: An ``n`` tensor of values.
        broad: The standard deviation if the values hardly differ, see :func:`fit_gamma`.
        name: The hyperparameter's name, for the log.

    Returns:
        A tensor of two: mean and standard deviation, the arguments of ``NormalPrior``.

    Raises:
        ValueError: If there are no values.

    Example:
        >>> fit_normal(torch.tensor([1.0, 3.0]), broad=1.0)
        tensor([2., 1.])
    """
    if len(sample) == 0:
        raise ValueError(f"A Normal distribution of the {name} needs values.")
    values = sample.detach().double()
    mean, std = values.mean(), values.std(correction=0)
    if float(std) < 1e-3 * broad:
        _warn_of_agreement(values, name, "Normal")
        std = torch.full_like(std, broad)
    return torch.stack([mean, std]).to(sample)


def _warn_of_agreement(values: Tensor, name: str, family: str) -> None:
    logger.warning(
        f"The {len(values)} estimate(s) of the {name} hardly differ: their hyperprior is a broad "
        f"{family} around them, not the degenerate one of maximum likelihood."
    )
