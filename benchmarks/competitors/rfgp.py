r"""RFGP: a GP by random Fourier features, that is, Bayesian linear regression [Wang2024hyperbo].

    f(z) = s φ(z)ᵀ w,    w ~ N(0, I),    φ_j(z) = √(2 / D) cos(ω_jᵀ z / ℓ + b_j),

`z` the input joined with its task's embedding, `ω_j` standard normal and `b_j` uniform, for the
squared exponential kernel. Section 7.2 of the paper says no more than that, and names a program
(Liu et al. 2020) that was not at hand. Ours are therefore: 256 features; embeddings, lengthscales
of the inputs, `s` and the noise variance are learned by the marginal likelihood of batches, and the
posterior of `w` is the exact one of all rows, in closed form. Training is that of `task_embedding`,
in 1,000 steps at the beginning and 50 an evaluation, where the paper's 1,000 epochs in each one at
a learning rate of 1e-3 have some ten thousand.

[Wang2024hyperbo]: Z. Wang et al. Pre-trained Gaussian Processes for Bayesian Optimization.
JMLR 2024.
"""

from __future__ import annotations

import math

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn

from benchmarks.competitors.task_embedding import (
    BATCH_SIZE,
    EMBEDDING,
    EmbeddedCompetitor,
    EmbeddedRegression,
    Rows,
)
from botorch_transfer.gp.likelihood import log_density

NUM_FEATURES = 256
LEAST_NOISE = 1e-4


class RandomFeatureGP(EmbeddedCompetitor):
    """The method."""

    steps = ((1e-2, 1000),)
    more_steps = (1e-2, 50)

    @classmethod
    def new_regression(cls, dim: int, num_tasks: int) -> RandomFeatureRegression:
        """Draws the features."""
        return RandomFeatureRegression(dim, num_tasks)


class RandomFeatureRegression(EmbeddedRegression):
    """The regression.

    Args:
        dim: The number of inputs `d`.
        num_tasks: The number of source tasks.
    """

    frequencies: Tensor
    phases: Tensor
    weights: Tensor
    root: Tensor

    def __init__(self, dim: int, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self.log_lengthscale = nn.Parameter(torch.full((dim,), math.log(0.5)))
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(math.log(0.01)))
        self.register_buffer("frequencies", torch.randn(dim + EMBEDDING, NUM_FEATURES))
        self.register_buffer("phases", 2 * math.pi * torch.rand(NUM_FEATURES))

    def features(self, Z: Tensor) -> Tensor:
        """The features of `... x k` joined inputs, times `s`; embeddings have their own scale."""
        lengthscale = torch.cat([self.log_lengthscale.exp(), self.phases.new_ones(EMBEDDING)])
        angle = (Z / lengthscale) @ self.frequencies + self.phases
        return self.log_scale.exp() * math.sqrt(2 / NUM_FEATURES) * angle.cos()

    @property
    def noise(self) -> Tensor:
        """The noise variance."""
        return self.log_noise.exp() + LEAST_NOISE

    def loss(self, rows: Rows) -> Tensor:
        """The negative log marginal likelihood of a batch, a point."""
        batch = rows.draw(BATCH_SIZE)
        features = self.features(self.joined(batch.X, batch.task))
        covariance = features @ features.mT + self.noise * torch.eye(BATCH_SIZE).to(features)
        root = psd_safe_cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, batch.Y.unsqueeze(-1), upper=False)
        return -log_density(root, whitened) / BATCH_SIZE

    def condition(self, rows: Rows) -> None:
        """Computes the posterior of the weights, of precision `ΦᵀΦ / σ² + I`."""
        features = self.features(self.joined(rows.X, rows.task))
        precision = features.mT @ features / self.noise + torch.eye(NUM_FEATURES).to(features)
        self.root = psd_safe_cholesky(precision)
        moment = features.mT @ rows.Y.unsqueeze(-1) / self.noise
        self.weights = torch.cholesky_solve(moment, self.root).squeeze(-1)

    def forward(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The posterior of the function, noise left out."""
        features = self.features(Z)
        whitened = torch.linalg.solve_triangular(self.root, features.mT, upper=False)
        return features @ self.weights, whitened.mT @ whitened
