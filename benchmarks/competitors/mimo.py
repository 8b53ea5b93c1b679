r"""MIMO: an ensemble of small networks that share their first layer [Wang2024hyperbo].

Section 7.2 of the paper says of it: one shared layer of ten units and two unshared ones of ten,
tanh, a linear output for the mean of a normal distribution and a softplus for its deviation, at
least `1e-4`. The ensemble predicts the mixture's mean and variance,

    μ = 1/E Σ μ_e,    σ² = 1/E Σ (σ_e² + μ_e²) - μ².

As in Havasi et al. (2021), each member has batches of its own. Their number is ours; training is
that of `task_embedding`, in a few thousand steps where the paper's 1,000 epochs in each evaluation
at a learning rate of 1e-4 have some ten thousand.

[Wang2024hyperbo]: Z. Wang et al. Pre-trained Gaussian Processes for Bayesian Optimization.
JMLR 2024.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gaussian_nll_loss, softplus

from benchmarks.competitors.task_embedding import (
    BATCH_SIZE,
    EMBEDDING,
    EmbeddedCompetitor,
    EmbeddedRegression,
    Rows,
)

MEMBERS = 4
WIDTH = 10
MIN_DEVIATION = 1e-4


class SharedSubnetworks(EmbeddedCompetitor):
    """The method."""

    steps = ((1e-2, 1000), (1e-3, 1000))
    more_steps = (1e-3, 300)

    @classmethod
    def new_regression(cls, dim: int, num_tasks: int) -> NetworkEnsemble:
        """Makes the networks."""
        return NetworkEnsemble(dim, num_tasks)


class NetworkEnsemble(EmbeddedRegression):
    """The networks.

    Args:
        dim: The number of inputs `d`.
        num_tasks: The number of source tasks.
    """

    def __init__(self, dim: int, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self.shared = nn.Linear(dim + EMBEDDING, WIDTH)
        self.own = nn.ModuleList(MemberLayers(WIDTH, size) for size in (WIDTH, WIDTH, 2))

    def members(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Each member's prediction.

        Args:
            Z: An `E x n x k` tensor of each one's joined inputs, or a `1 x n x k` one of all.

        Returns:
            Means and deviations, two `E x n` tensors.
        """
        hidden = self.shared(Z)
        for layer in self.own:
            hidden = layer(hidden.tanh())
        mean, raw = hidden.unbind(dim=-1)
        return mean, softplus(raw) + MIN_DEVIATION

    def loss(self, rows: Rows) -> Tensor:
        """The members' negative log likelihood, each of a batch of its own."""
        batch = rows.draw(MEMBERS, BATCH_SIZE)
        mean, deviation = self.members(self.joined(batch.X, batch.task))
        return gaussian_nll_loss(mean, batch.Y, deviation.square(), eps=MIN_DEVIATION**2)

    def condition(self, rows: Rows) -> None:
        """Does nothing: the networks are all there is."""

    def forward(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The mixture's mean, and its variance, noise included; points are independent."""
        mean, deviation = self.members(Z.reshape(1, -1, Z.shape[-1]))
        variance = deviation.square().mean(dim=0) + mean.var(dim=0, correction=0)
        return mean.mean(dim=0).reshape(Z.shape[:-1]), variance.reshape(Z.shape[:-1]).diag_embed()


class MemberLayers(nn.Module):
    """A linear layer of each member.

    Args:
        num_inputs: The number of inputs.
        num_outputs: The number of outputs.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(num_inputs)  # PyTorch's own
        self.weight = nn.Parameter(
            torch.empty(MEMBERS, num_inputs, num_outputs).uniform_(-limit, limit)
        )
        self.bias = nn.Parameter(torch.empty(MEMBERS, 1, num_outputs).uniform_(-limit, limit))

    def forward(self, Z: Tensor) -> Tensor:
        """Maps `E x n x num_inputs` to `E x n x num_outputs`."""
        return Z @ self.weight + self.bias
