"""Uniform sub-samples of tasks and points, one for each step of pre-training."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from botorch_transfer.pretraining.padding import PaddedTasks

BLOCK_ELEMENTS = 2**17
"""Random numbers that are drawn at once: for several steps, because drawing costs by the call."""


class Batch(NamedTuple):
    """What a step sees of some tasks.

    Args:
        X: A ``T x B x d`` tensor of inputs.
        Y: A ``T x B`` tensor of outcomes.
        mask: A ``T x B`` boolean tensor, ``False`` for padding; ``None`` if there is none.
        known_noise: A ``T x B`` tensor of known noise variances, NaN for tasks whose noise is
            inferred; ``None`` if all are.
    """

    X: Tensor
    Y: Tensor
    mask: Tensor | None
    known_noise: Tensor | None


class RandomBatches:
    """Fresh uniform samples without repetitions, the same for a step whenever it is asked for.

    Args:
        tasks: The padded tasks.
        batch_size: The number of points of a task in a batch; all of a task that has fewer.
        task_batch_size: The number of tasks in a batch.
        seed: The seed.
    """

    def __init__(
        self, tasks: PaddedTasks, batch_size: int, task_batch_size: int, seed: int
    ) -> None:
        self.tasks, self.seed = tasks, seed
        sizes: list[int] = tasks.num_points.tolist()
        self.batch_size = min(batch_size, max(sizes))
        self.task_batch_size = min(task_batch_size, len(sizes))
        self.any_padding = min(sizes) < max(sizes)
        self.every_batch_is_full = min(sizes) >= self.batch_size
        self.any_known_noise = bool(tasks.fixed_noise.any())
        self.block_size = max(1, BLOCK_ELEMENTS // (self.task_batch_size * max(sizes)))
        self.block: int | None = None

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step."""
        block, place = divmod(step, self.block_size)
        if block != self.block:
            self.block, self.drawn = block, self._draw(block)
        X, Y, *others = self.drawn
        mask, noise = (None if other is None else other[place] for other in others)
        return Batch(X[place], Y[place], mask, noise)

    def _draw(self, block: int) -> Batch:
        """Draws the batches of a block of steps, in a further dimension in front."""
        tasks, (M, N) = self.tasks, self.tasks.mask.shape
        S, T, device = self.block_size, self.task_batch_size, tasks.X.device
        generator = torch.Generator(device).manual_seed(_seed(self.seed, block))

        def keys(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        # The largest of random keys are a uniform sample without repetitions.
        chosen = torch.arange(M, device=device).expand(S, M)
        if T < M:
            chosen = keys(S, M).topk(T, dim=-1, sorted=False).indices
        of_points = keys(S, T, N)
        if self.any_padding:
            of_points = torch.where(tasks.mask[chosen], of_points, of_points - 1.0)
        points = of_points.topk(self.batch_size, dim=-1, sorted=False).indices
        at = chosen.unsqueeze(-1), points
        mask = None if self.every_batch_is_full else tasks.mask[at]
        noise = None
        if self.any_known_noise:
            noise = tasks.Yvar[at].masked_fill(~tasks.fixed_noise[at[0]], math.nan)
        return Batch(tasks.X[at], tasks.Y[at], mask, noise)


def _seed(seed: int, block: int) -> int:
    """A seed of its own for each block of each run."""
    words = np.random.SeedSequence((seed % 2**64, block)).generate_state(1, np.uint64)
    return int(words[0]) % 2**63
