"""Normal and Gamma distributions fitted to a few estimates by maximum likelihood.

A handful of estimates may agree so well that the likelihood is unbounded: one domain, or equal
estimates. A distribution as narrow as that would keep every later fit at the same value, so a broad
one around the estimates takes its place.
"""

from __future__ import annotations

import logging

import torch
from scipy import stats
from torch import Tensor

logger = logging.getLogger(__name__)

MAX_SHAPE = 1e3
"""A Gamma of a larger shape, of less than 3 % relative deviation, is taken for degenerate."""

BROAD_SHAPE = 2.0
"""Shape of the broad Gamma: a relative deviation of 70 %, and a density of zero at zero."""


def fit_gamma(sample: Tensor, name: str = "hyperparameter") -> Tensor:
    """Fits a Gamma distribution.

    Args:
        sample: An ``n`` tensor of positive values.
        name: What they are values of, for the log.

    Returns:
        A tensor of two: shape and rate, as ``GammaPrior`` takes them. Values that are all equal, or
        just one, give the broad Gamma of the same mean; the log says so.

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
    # The shape of the best Gamma follows from how far the mean is above the geometric mean: about
    # one half divided by this.
    if float(mean * (-values.log().mean()).exp()) - 1 < 0.5 / MAX_SHAPE:
        logger.warning(
            "The %d estimate(s) of the %s hardly differ: their hyperprior is a broad Gamma around "
            "them, not the degenerate one of maximum likelihood.",
            len(values),
            name,
        )
        return torch.tensor([BROAD_SHAPE, BROAD_SHAPE / mean]).to(sample)
    # SciPy's search starts at the right scale for values of order one.
    shape, _, scale = stats.gamma.fit((values / mean).numpy(), floc=0)
    return torch.tensor([shape, 1 / (scale * mean)], dtype=torch.double).to(sample)


def fit_normal(sample: Tensor, broad: float, name: str = "hyperparameter") -> Tensor:
    """Fits a Normal distribution.

    Args:
        sample: An ``n`` tensor of values.
        broad: The standard deviation to take where the values hardly differ.
        name: What they are values of, for the log.

    Returns:
        A tensor of two: mean and standard deviation, as ``NormalPrior`` takes them.

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
        logger.warning(
            "The %d estimate(s) of the %s hardly differ: their hyperprior is a broad Normal around "
            "them, not the degenerate one of maximum likelihood.",
            len(values),
            name,
        )
        std = torch.full_like(std, broad)
    return torch.stack([mean, std]).to(sample)
