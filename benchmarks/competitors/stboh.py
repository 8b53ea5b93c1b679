"""STBOH: a GP with hand-tuned hyperpriors, which knows no history [Wang2024hyperbo].

Section 7.2 says all of it: a constant mean, an anisotropic Matérn 5/2 kernel, and

    log σ_f² ~ N(-1, 1),    log ℓ_j ~ N(0, 1),    log σ² ~ N(-6, 3),

every value kept between its 1st and its 99th percentile, hyperparameters anew at each step, and
the upper confidence bound with 1.8 standard deviations. Ours to choose, as the paper doesn't say:
outcomes are standardized, the third parameters' `3` is a standard deviation, hyperparameters are
those of the largest posterior, as they have priors (it says "marginal likelihood"), and the bounds
are a sigmoid (GPyTorch's) where theirs are another smooth function.

[Wang2024hyperbo]: Z. Wang et al. Pre-trained Gaussian Processes for Bayesian Optimization.
JMLR 2024.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Self

from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from benchmarks.competitors.competitor import Competitor, History

SIGNAL, LENGTHSCALE, NOISE = (-1.0, 1.0), (0.0, 1.0), (-6.0, 3.0)
"""Means and standard deviations of the logarithms."""

COEFFICIENT = 1.8
NORMAL_99 = NormalDist().inv_cdf(0.99)


class HandTunedGP(Competitor):
    """The method.

    Args:
        bounds: A `2 x d` tensor of the search space's bounds.
    """

    needs_data = True

    def __init__(self, bounds: Tensor) -> None:
        self.bounds = bounds

    @classmethod
    def build(cls, history: History, bounds: Tensor, seed: int) -> Self:
        """Ignores the history."""
        return cls(bounds)

    def acquisition(self, train_X: Tensor, train_Y: Tensor) -> AcquisitionFunction:
        """The upper confidence bound of the fitted GP."""
        model = self.model(train_X, train_Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return UpperConfidenceBound(model, beta=COEFFICIENT**2)

    def model(self, train_X: Tensor, train_Y: Tensor) -> SingleTaskGP:
        """The GP before its fit, every hyperparameter at its median."""
        dim = train_X.shape[-1]
        kernel = MaternKernel(
            nu=2.5,
            ard_num_dims=dim,
            lengthscale_prior=LogNormalPrior(*LENGTHSCALE),
            lengthscale_constraint=_between_percentiles(*LENGTHSCALE),
        )
        likelihood = GaussianLikelihood(
            noise_prior=LogNormalPrior(*NOISE), noise_constraint=_between_percentiles(*NOISE)
        )
        return SingleTaskGP(
            train_X,
            train_Y,
            covar_module=ScaleKernel(
                kernel,
                outputscale_prior=LogNormalPrior(*SIGNAL),
                outputscale_constraint=_between_percentiles(*SIGNAL),
            ),
            likelihood=likelihood,
            input_transform=Normalize(dim, bounds=self.bounds),
            outcome_transform=Standardize(1),
        )


def _between_percentiles(location: float, scale: float) -> Interval:
    low, median, high = (math.exp(location + scale * z) for z in (-NORMAL_99, 0.0, NORMAL_99))
    return Interval(low, high, initial_value=median)
