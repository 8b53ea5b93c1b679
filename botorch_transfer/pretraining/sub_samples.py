"""Fitting a domain's hyperparameters by Adam, on a few points of each task at a time.

The gradient of the mean likelihood of sub-samples is unbiased, and its cost does not depend on the
number of points: for tasks too large for a Cholesky factor an iteration.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from botorch_transfer.kernels.stationary import StationaryFunction
from botorch_transfer.pretraining.domain_objective import (
    domain_negative_log_likelihood,
    lengthscale_penalty,
)
from botorch_transfer.pretraining.padding import PaddedTasks


class AdamOptions(Protocol):
    """What the optimization needs of its options."""

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        ...

    @property
    def learning_rate(self) -> float:
        """Adam's learning rate."""
        ...

    @property
    def batch_size(self) -> int:
        """How many points of each task a step sees; all of a task that has fewer."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the sub-samples."""
        ...

    @property
    def lengthscale_spread(self) -> float:
        """How far lengthscales may go without reason, see :func:`lengthscale_penalty`."""
        ...


def minimize_by_sub_samples(
    tasks: PaddedTasks,
    function: StationaryFunction,
    start: Tensor,
    limits: tuple[Tensor, ...],
    options: AdamOptions,
) -> Tensor:
    """Minimizes a domain's mean negative log likelihood of sub-samples.

    Args:
        tasks: The domain's padded tasks.
        function: The unit-variance stationary kernel.
        start: A ``d + 3`` tensor, as :func:`domain_negative_log_likelihood` takes a row of.
        limits: Lower and upper bounds like ``start``.
        options: How to optimize.

    Returns:
        The parameters after the last step, a ``d + 3`` tensor.
    """
    theta = start.clone().unsqueeze(0).requires_grad_(True)
    adam = torch.optim.Adam([theta], lr=options.learning_rate)
    sampler = SubSampler(tasks, options.batch_size, options.seed)
    num_drawn = float(tasks.num_points.clamp_max(options.batch_size).sum())
    num_points, least = float(tasks.num_points.sum()), math.exp(float(start[0]))
    for _ in range(options.num_steps):
        _, gradient = domain_negative_log_likelihood(theta.detach(), sampler.draw(), function)
        # A sub-sample whose matrix cannot be factorized tells nothing.
        theta.grad = gradient.nan_to_num(nan=0.0) / num_drawn
        _, penalty = lengthscale_penalty(theta.detach(), least, options.lengthscale_spread)
        theta.grad += penalty / num_points
        adam.step()
        with torch.no_grad():
            theta.clamp_(*limits)
    return theta.detach().squeeze(0)


class SubSampler:
    """Draws points of each task without replacement, in random order, time and again.

    Args:
        tasks: The padded tasks.
        size: How many points of each task to draw at a time.
        seed: The seed.
    """

    def __init__(self, tasks: PaddedTasks, size: int, seed: int) -> None:
        self.tasks = tasks
        self.size = min(size, tasks.X.shape[-2])
        self.generator = torch.Generator().manual_seed(seed)
        self.sizes = tasks.num_points.unsqueeze(-1)
        self.columns = torch.arange(self.size, device=tasks.X.device)
        # Of a task with fewer points, each is drawn once.
        self.mask = self.columns < self.sizes
        self.rows = torch.arange(len(tasks.X), device=tasks.X.device).unsqueeze(-1)
        self.position = tasks.X.shape[-2]

    def draw(self) -> PaddedTasks:
        """Draws the next points of each task."""
        tasks = self.tasks
        if self.position + self.size > tasks.X.shape[-2]:
            self._shuffle()
        columns = (self.position + self.columns) % self.sizes
        self.position += self.size
        chosen = self.order[self.rows, columns]
        mask = self.mask
        return replace(
            tasks,
            X=tasks.X[self.rows, chosen],
            Y=tasks.Y[self.rows, chosen] * mask,
            Yvar=tasks.Yvar[self.rows, chosen] * mask,
            mask=mask,
        )

    def _shuffle(self) -> None:
        random = torch.rand(self.tasks.mask.shape, generator=self.generator)
        # Padding goes last.
        random = random.to(self.tasks.X).masked_fill(~self.tasks.mask, 2.0)
        self.order = random.argsort(dim=-1)
        self.position = 0
