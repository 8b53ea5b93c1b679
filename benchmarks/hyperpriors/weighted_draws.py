"""HyperBO+'s acquisition as its paper has it: draws of a hyperprior, weighted by likelihood."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_transfer.gp.stationary import squared_distance, stationary_function
from botorch_transfer.hyperprior.fit import HyperparameterDraws

_LEAST_NOISE = 1e-8
"""The lowest noise variance of a draw, relative to its signal's."""


class WeightedDraws:
    r"""Scores the points of a table by probability of improvement, averaged over draws.

    Eq. 5 of HyperBO+: the draws stay the same from step to step, and each counts by its likelihood.
    As draws and table stay the same, a new point is one more row of each draw's Cholesky factor
    and of what it says of all points, so that a step takes `O(R n N)`. `FullyBayesianHyperpriorGP`
    computes the same for any inputs and acquisition function, by resampling instead of weights.

    Args:
        X: An `N x d` tensor of all points.
        Y: An `N x 1` tensor of their values.
        draws: `R` draws of hyperparameters.
        kernel: The stationary kernel's name.
        margin: By how much the best value is to be improved upon.
    """

    def __init__(
        self, X: Tensor, Y: Tensor, draws: HyperparameterDraws, kernel: str, margin: float = 0.1
    ) -> None:
        self.Y, self.draws, self.margin = Y.squeeze(-1), draws, margin
        self._function = stationary_function(kernel)
        self._scaled = X / draws.lengthscale.unsqueeze(-2)
        self._noise = torch.maximum(draws.noise, _LEAST_NOISE * draws.outputscale)
        self.log_likelihood = X.new_zeros(len(draws))
        self.mean = draws.constant.unsqueeze(-1).repeat(1, len(X))
        self.variance = draws.outputscale.unsqueeze(-1).repeat(1, len(X))
        self._known: list[int] = []
        # Row i of each: the i-th known point, whitened, against all points.
        self._rows = X.new_empty(len(draws), 0, len(X))

    @torch.no_grad()
    def __call__(self, chosen: list[int]) -> Tensor:
        """Computes the logarithm of the averaged probability of improvement of each point."""
        for number in chosen[len(self._known) :]:
            self._add(number)
        best = self.Y[self._known].max() + self.margin
        deviation = self.variance.clamp_min(1e-12).sqrt()
        log_probability = torch.special.log_ndtr((self.mean - best) / deviation)
        return (self.log_weights.unsqueeze(-1) + log_probability).logsumexp(dim=0)

    @property
    def log_weights(self) -> Tensor:
        """Logarithms of the draws' weights, which sum to one."""
        return self.log_likelihood.log_softmax(dim=0)

    def _add(self, number: int) -> None:
        point = self._scaled[:, [number]]
        log_scale = self.draws.outputscale.log()[:, None, None]
        covariance = self._function.value(squared_distance(point, self._scaled), log_scale)
        row = covariance.squeeze(-2)
        row = row - torch.einsum("rn,rnm->rm", self._rows[:, :, number], self._rows)
        # What the known points leave open of the new one, its noise included.
        pivot = (self.variance[:, number].clamp_min(0.0) + self._noise).sqrt()
        row = row / pivot.unsqueeze(-1)
        surprise = (self.Y[number] - self.mean[:, number]) / pivot
        log_density = -0.5 * (surprise.square() + math.log(2 * math.pi)) - pivot.log()
        self.log_likelihood = self.log_likelihood + log_density
        self.mean = self.mean + row * surprise.unsqueeze(-1)
        self.variance = self.variance - row.square()
        self._rows = torch.cat([self._rows, row.unsqueeze(-2)], dim=-2)
        self._known.append(number)
