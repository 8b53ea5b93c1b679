"""The loss of pre-training on given source tasks: sub-sampled, or in full."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.pretraining.gp_parts import GPParts
from botorch_transfer.pretraining.matching_groups import MatchingGroup
from botorch_transfer.pretraining.objectives import EmpiricalGaussian, ekl
from botorch_transfer.pretraining.padding import PaddedTasks
from botorch_transfer.pretraining.random_batches import RandomBatches

logger = logging.getLogger(__name__)

CHUNK_ELEMENTS = 2**21
"""Elements of covariance matrices that a full NLL has in memory at once; one matrix at least."""


class TaskNLL:
    """The mean over tasks of the NLL, of fresh sub-samples or of all points.

    Args:
        tasks: The padded tasks, in the prior's units.
        batch_size: The number of points of a task in a sub-sample; all by default.
        task_batch_size: The number of tasks in a sub-sample; all by default.
        seed: The seed of the sub-samples.
    """

    def __init__(
        self,
        tasks: PaddedTasks,
        batch_size: int | None = None,
        task_batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.tasks = tasks
        self.sizes: list[int] = tasks.num_points.tolist()
        self.batches = RandomBatches(
            tasks, batch_size or max(self.sizes), task_batch_size or len(self.sizes), seed
        )

    def sampled(self, parts: GPParts, step: int) -> Tensor:
        """Evaluates the loss on a step's own uniform sub-sample of tasks and points.

        Args:
            parts: The GP.
            step: The number of the step.

        Returns:
            A differentiable tensor without dimensions.
        """
        X, Y, mask, known = self.batches[step]
        noise = None if known is None else torch.where(known.isnan(), parts.noise, known)
        return parts.nll(X, Y, mask, noise).mean()

    def of_tasks(self, parts: GPParts) -> Iterator[Tensor]:
        """Evaluates the NLL of all points, as many tasks at once as fit into a chunk.

        Args:
            parts: The GP.

        Yields:
            Differentiable tensors, together one value a task; tasks of similar size come together.
        """
        order = sorted(range(len(self.sizes)), key=self.sizes.__getitem__)
        while order:
            largest = self.sizes[order[-1]]
            count = max(1, CHUNK_ELEMENTS // largest**2)
            chunk, order = order[-count:], order[:-count]
            tasks = self.tasks[torch.tensor(chunk, device=self.tasks.X.device)]
            noise = torch.where(tasks.fixed_noise.unsqueeze(-1), tasks.Yvar, parts.noise)
            yield parts.nll(tasks.X, tasks.Y, tasks.mask, noise)


@dataclass(frozen=True)
class GroupEKL:
    """The mean over matching groups of the EKL.

    Args:
        X: A ``G x P x d`` tensor: each group's inputs, padded by its first.
        empirical: What the tasks show at these inputs.
        known_noise: A ``G x P`` tensor: known noise variances, averaged over a group's tasks, where
            a task without them counts as zero.
        inferred: A ``G x 1`` tensor: the share of a group's tasks whose noise is inferred.
    """

    X: Tensor
    empirical: EmpiricalGaussian
    known_noise: Tensor
    inferred: Tensor

    @classmethod
    def of(cls, tasks: PaddedTasks, groups: Sequence[MatchingGroup]) -> GroupEKL:
        """Gathers what the groups share.

        Args:
            tasks: The padded tasks, in the prior's units.
            groups: The groups of matching inputs.

        Returns:
            The loss; groups whose tasks have equal outcomes are left out.

        Raises:
            InputDataError: If this leaves no group.
        """
        kept = []
        for group in groups:
            at = group.tasks, group.rows
            if _differ(tasks.Y[at]):
                kept.append((tasks.X[group.tasks[0], group.rows[:, 0]], at))
        if len(kept) < len(groups):
            logger.info(
                "%d groups of tasks with equal outcomes are left out.", len(groups) - len(kept)
            )
        if not kept:
            raise InputDataError(
                "All source tasks with matching inputs have equal outcomes there, so the EKL has "
                "nothing to learn from: use objective='nll'."
            )
        size = max(len(X) for X, _ in kept)
        return cls(
            X=torch.stack([torch.cat([X, X[:1].expand(size - len(X), -1)]) for X, _ in kept]),
            empirical=EmpiricalGaussian.of([tasks.Y[at] for _, at in kept]),
            known_noise=pad_sequence([tasks.Yvar[at].mean(-1) for _, at in kept], batch_first=True),
            inferred=torch.stack(
                [(~tasks.fixed_noise[at[0]]).to(tasks.Y).mean() for _, at in kept]
            ).unsqueeze(-1),
        )

    def full(self, parts: GPParts) -> Tensor:
        """Evaluates the loss, a differentiable tensor without dimensions."""
        mean, covariance = parts(self.X)
        noise = self.known_noise + self.inferred * parts.noise
        return ekl(mean, covariance + torch.diag_embed(noise), self.empirical).mean()


def _differ(Y: Tensor) -> bool:
    try:
        EmpiricalGaussian.of([Y])
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class SourceLoss:
    """The weighted sum of NLL and EKL that pre-training minimizes.

    Args:
        task_nll: The NLL; ``None`` if it does not count.
        group_ekl: The EKL; ``None`` if it does not count.
        nll_weight: The weight of the NLL.
    """

    task_nll: TaskNLL | None
    group_ekl: GroupEKL | None
    nll_weight: float = 1.0

    def sampled(self, parts: GPParts, step: int) -> Tensor:
        """Adds the gradient of a step's sampled loss to the parameters' own; returns the loss."""
        terms = []
        if self.task_nll is not None:
            terms.append(self.nll_weight * self.task_nll.sampled(parts, step))
        if self.group_ekl is not None:
            terms.append(self.group_ekl.full(parts))
        total = torch.stack(terms).sum() if len(terms) > 1 else terms[0]
        total.backward()
        return total.detach()

    def full(self, parts: GPParts) -> Tensor:
        """Adds the gradient of the whole loss to the parameters' own; returns the loss."""
        total = parts.noise.new_zeros(())
        if self.task_nll is not None:
            weight = self.nll_weight / len(self.task_nll.sizes)
            for values in self.task_nll.of_tasks(parts):
                part = weight * values.sum()
                part.backward()
                total = total + part.detach()
        if self.group_ekl is not None:
            part = self.group_ekl.full(parts)
            part.backward()
            total = total + part.detach()
        return total
