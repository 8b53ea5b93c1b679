"""The objectives of pre-training: the NLL and the EKL of [Wang2024hyperbo]_.

Pre-training assumes that all tasks are draws of one GP. The NLL is the negative log marginal
likelihood of the tasks. The EKL compares the GP with the empirical mean and covariance of tasks
that were evaluated at the same inputs. The module contains the EKL's formula, the search for
matching inputs, the sub-samples of Adam's steps, and the losses.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.gp.conditioned import groups_of_like_size
from botorch_transfer.gp.likelihood import CHUNK_ELEMENTS, gaussian_loss
from botorch_transfer.gp.tasks import PaddedTasks, check_choice
from botorch_transfer.hyperbo.features import GPParts

logger = logging.getLogger(__name__)

#: Number of random numbers that are drawn at once, for several steps. Single draws would be slow.
RANDOM_NUMBERS = 2**17

# --------------------------------------------------------------------------------------- EKL


@dataclass(frozen=True)
class EmpiricalGaussian:
    r"""Empirical mean and covariance of the outcomes of each group of tasks with shared inputs.

    The covariance ``Σ̃ = A Aᵀ`` of ``N`` tasks has a rank ``r < N``, often less than the number of
    inputs. The GP is then compared only in the range (the column space) of ``Σ̃``. Groups with
    fewer inputs or a lower rank are padded by zeros.

    Args:
        mean: A ``G x P`` tensor of means over tasks ``μ̃``.
        whitening: A ``G x R x P`` tensor of pseudo-inverses ``A⁺``. Rows beyond a group's rank are
            zero.
    """

    mean: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, outcomes: Sequence[Tensor]) -> Self:
        r"""Estimates a Gaussian for each group.

        The rank is the number of singular values of ``(Y - μ̃) / √N`` above ``max(P, N) ε`` times
        the largest singular value, with the machine epsilon ``ε``. With a lower tolerance, the
        whitening would divide by rounding errors.

        Args:
            outcomes: For each group a ``P_g x N_g`` tensor: the outcomes of ``N_g`` tasks at
                ``P_g`` shared inputs. The outcomes of a group must not all be equal.

        Returns:
            The Gaussians.

        Example:
            >>> EmpiricalGaussian.of([torch.tensor([[1.0, 3.0], [2.0, 2.0]])]).mean
            tensor([[2., 2.]])
        """
        means = [Y.mean(dim=-1) for Y in outcomes]
        whitenings = [_whiten(Y) for Y in outcomes]
        mean = pad_sequence(means, batch_first=True)
        whitening = mean.new_zeros(len(means), max(map(len, whitenings)), mean.shape[-1])
        for padded, W in zip(whitening, whitenings, strict=True):
            padded[: W.shape[0], : W.shape[1]] = W
        return cls(mean, whitening)


def _whiten(Y: Tensor) -> Tensor:
    """Computes the ``r x P`` pseudo-inverse ``A⁺``; ``r`` is zero for equal outcomes."""
    centered = (Y - Y.mean(dim=-1, keepdim=True)) / math.sqrt(Y.shape[-1])
    U, singular, _ = torch.linalg.svd(centered, full_matrices=False)
    tolerance = max(Y.shape) * torch.finfo(Y.dtype).eps
    # If outcomes are equal up to rounding, all singular values are rounding errors.
    largest = torch.where(singular[0] > tolerance * Y.abs().max(), singular[0], torch.inf)
    rank = int((singular > tolerance * largest).sum())
    return U[:, :rank].mT / singular[:rank].unsqueeze(-1)


def ekl(mean: Tensor, covariance: Tensor, empirical: EmpiricalGaussian) -> Tensor:
    r"""Computes the EKL between the GP and each group's empirical Gaussian.

    The formula is Eq. 5 and 9 of [Wang2024hyperbo]_. In the range of the empirical covariance, with
    ``μ_p = A⁺ (μ - μ̃)`` and ``Σ_p = A⁺ Σ A⁺ᵀ``,

    .. code-block:: text

        EKL = ½ (tr Σ_p⁻¹ + μ_pᵀ Σ_p⁻¹ μ_p + ln|Σ_p| - r)

    If ``Σ̃`` has full rank, this is the Kullback-Leibler divergence ``KL(N(μ̃, Σ̃) ‖ N(μ, Σ))``.

    Args:
        mean: A ``G x P`` tensor: the GP's mean at each group's inputs. Values at the padding are
            ignored, but must be finite.
        covariance: A ``G x P x P`` tensor: the GP's covariance at these inputs, noise included.
        empirical: The groups' empirical Gaussians.

    Returns:
        A ``G`` tensor with a value for each group, differentiable in mean and covariance. NaN if a
        projected covariance is not positive definite, even with jitter.

    Example:
        >>> empirical = EmpiricalGaussian.of([torch.tensor([[0.0, 2.0]])])
        >>> ekl(torch.ones(1, 1), torch.ones(1, 1, 1), empirical)
        tensor([0.])
    """
    W = empirical.whitening
    padding = (W == 0).all(dim=-1)
    projected_mean = W @ (mean - empirical.mean).unsqueeze(-1)
    # A padded direction has mean zero and variance one, so its contribution is zero.
    projected = W @ covariance @ W.mT + torch.diag_embed(padding.to(W))
    eye = torch.eye(W.shape[-2], dtype=W.dtype, device=W.device).expand_as(projected)
    return gaussian_loss(torch.cat([eye, projected_mean], dim=-1), projected) - 0.5 * W.shape[-2]


# --------------------------------------------------------------------------- matching inputs

Rows = npt.NDArray[np.intp]


class MatchingGroup(NamedTuple):
    """Inputs at which several tasks were evaluated.

    Args:
        tasks: An ``N`` tensor of task indices, ascending.
        rows: A ``P x N`` tensor: the row of each shared input in each task.
    """

    tasks: Tensor
    rows: Tensor


def find_matching_groups(
    inputs: Sequence[Tensor],
    groups: Sequence[Sequence[int]] | None = None,
    tolerance: float = 1e-8,
) -> list[MatchingGroup]:
    """Finds the inputs that tasks share.

    Each input belongs to the group of all tasks that were evaluated at this input. For example, a
    design that all tasks share is one group, and a design that half of the tasks share is another
    group. If a task was evaluated at an input repeatedly, only the first evaluation counts.

    Args:
        inputs: Each task's ``n_i x d`` tensor of inputs.
        groups: Sets of task indices; the common inputs of each set are a group. By default all
            groups of matching inputs are found.
        tolerance: Values of one input dimension count as equal if they differ by no more than
            ``tolerance``.

    Returns:
        The groups, each of two tasks or more, ordered by their tasks.

    Raises:
        InputDataError: If no two tasks share an input, or if the tasks of a given group share no
            input.
        ValueError: If ``groups`` is empty.

    Example:
        >>> X = torch.rand(4, 2)
        >>> groups = find_matching_groups([X, X[1:].flip(0), torch.rand(3, 2)])
        >>> groups[0].tasks, groups[0].rows
        (tensor([0, 1]), tensor([[1, 2], [2, 1], [3, 0]]))
    """
    if groups is not None and len(groups) == 0:
        raise ValueError("groups= is empty: leave out groups= to use all matching inputs.")
    first_row = _first_rows(inputs, tolerance)
    visited = first_row >= 0
    found = _found_groups(visited) if groups is None else _given_groups(visited, groups)
    matching = []
    for tasks, points in found:
        rows = first_row[np.ix_(points, tasks)]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]  # in the order of the first task
        index = torch.tensor(tasks, device=inputs[0].device)
        matching.append(MatchingGroup(index, torch.from_numpy(rows).to(index.device)))
    return matching


def _first_rows(inputs: Sequence[Tensor], tolerance: float) -> Rows:
    """Returns each task's first row at each distinct input; -1 if the task has no such row."""
    stacked = torch.cat(list(inputs)).detach().cpu().double().numpy()
    codes = [_codes(column, tolerance) for column in stacked.T]
    task = np.repeat(np.arange(len(inputs)), [len(X) for X in inputs])
    row = pd.Series(np.concatenate([np.arange(len(X)) for X in inputs]))
    return row.groupby([*codes, task]).min().unstack(fill_value=-1).to_numpy()


def _codes(values: npt.NDArray[np.float64], tolerance: float) -> Rows:
    """Numbers the distinct values of a column, up to a tolerance."""
    # Rounding would separate two close values on different sides of a rounding boundary.
    order = np.argsort(values, kind="stable")
    steps = np.diff(values[order], prepend=values[order[:1]]) > tolerance
    codes = np.empty(len(values), dtype=np.intp)
    codes[order] = np.cumsum(steps)
    return codes


def _found_groups(visited: npt.NDArray[np.bool_]) -> list[tuple[Sequence[int], Sequence[int]]]:
    points_of: defaultdict[Sequence[int], list[int]] = defaultdict(list)
    for point, tasks in enumerate(visited):
        points_of[tuple(np.flatnonzero(tasks).tolist())].append(point)
    if not any(len(tasks) > 1 for tasks in points_of):
        raise InputDataError(
            "No two source tasks share an input, which the EKL needs: use objective='nll'."
        )
    return sorted((tasks, points) for tasks, points in points_of.items() if len(tasks) > 1)


def _given_groups(
    visited: npt.NDArray[np.bool_], groups: Sequence[Sequence[int]]
) -> list[tuple[Sequence[int], Sequence[int]]]:
    found: list[tuple[Sequence[int], Sequence[int]]] = []
    for members in groups:
        tasks = sorted({int(task) for task in members})
        is_group = len(tasks) > 1 and tasks[0] >= 0 and tasks[-1] < visited.shape[1]
        points = np.flatnonzero(visited[:, tasks].all(axis=-1)).tolist() if is_group else []
        if not points:
            raise InputDataError(
                f"The group {list(members)} of groups= is invalid: give the indices of two or more "
                f"source tasks, from 0 to {visited.shape[1] - 1}, that share an input."
            )
        found.append((tasks, points))
    return found


# -------------------------------------------------------------------------------------- sub-samples


class RandomBatches:
    """Random sub-samples of tasks and points, one for each step of Adam.

    Tasks and points are drawn uniformly without replacement. A step's sub-sample depends only on
    the seed and the number of the step.

    Args:
        tasks: The padded tasks.
        batch_size: The number of points of a task in a batch; all by default. A smaller task
            contributes all its points.
        task_batch_size: The number of tasks in a batch; all by default.
        seed: The seed.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> tasks = PaddedTasks(X, X.sum(-1), 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> batches = RandomBatches(tasks, batch_size=4, task_batch_size=2)
        >>> batches[0].X.shape, torch.equal(batches[0].X, batches[1].X)
        (torch.Size([2, 4, 2]), False)
    """

    def __init__(
        self,
        tasks: PaddedTasks,
        batch_size: int | None = None,
        task_batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.tasks, self.seed = tasks, seed
        sizes: list[int] = tasks.num_points.tolist()
        self.batch_size = min(batch_size or max(sizes), max(sizes))
        self.task_batch_size = min(task_batch_size or len(sizes), len(sizes))
        self.is_padded = min(sizes) < self.batch_size
        self.block_size = max(1, RANDOM_NUMBERS // (self.task_batch_size * max(sizes)))
        self._block: int | None = None

    def __getitem__(self, step: int) -> PaddedTasks:
        """Returns the batch of a step: ``T`` tasks with ``B`` points each."""
        block, place = divmod(step, self.block_size)
        if block != self._block:
            self._block, self._drawn = block, self._draw(block)
        return PaddedTasks(*(part[place] for part in self._drawn))

    def _draw(self, block: int) -> list[Tensor]:
        """Draws the fields of a block of batches, with a leading dimension of steps."""
        tasks, (M, N) = self.tasks, self.tasks.mask.shape
        S, T, device = self.block_size, self.task_batch_size, tasks.X.device
        # Each block of each run has its own seed.
        words = np.random.SeedSequence((self.seed % 2**64, block)).generate_state(1, np.uint64)
        generator = torch.Generator(device).manual_seed(int(words[0]) % 2**63)

        def keys(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        # The indices of the largest random keys are a uniform sample without replacement.
        chosen = torch.arange(M, device=device).expand(S, M)
        if T < M:
            chosen = keys(S, M).topk(T, dim=-1, sorted=False).indices
        ranks = keys(S, T, N)
        if tasks.is_ragged:
            ranks = torch.where(tasks.mask[chosen], ranks, -1.0)
        points = ranks.topk(self.batch_size, dim=-1, sorted=False).indices
        at = chosen.unsqueeze(-1), points
        of_points = tasks.X, tasks.Y, tasks.Yvar, tasks.mask
        return [*(part[at] for part in of_points), tasks.fixed_noise[chosen]]


# ------------------------------------------------------------------------------------ losses


class TaskNLL:
    """The mean NLL of the tasks, on sub-samples or on all points.

    Args:
        tasks: The padded tasks, in the prior's units.
        batches: The sub-samples; by default, each sub-sample contains all points of all tasks.
    """

    def __init__(self, tasks: PaddedTasks, batches: RandomBatches | None = None) -> None:
        self.tasks, self.batches = tasks, batches or RandomBatches(tasks)
        self.sizes = tasks.num_points
        self._any_known_noise = bool(tasks.fixed_noise.any())

    def sampled(self, parts: GPParts, step: int) -> Tensor:
        """Evaluates the mean NLL on a step's sub-sample of tasks and points.

        Args:
            parts: The GP.
            step: The number of the step.

        Returns:
            A differentiable tensor without dimensions.
        """
        return self._values(parts, self.batches[step], self.batches.is_padded).mean()

    def of_tasks(self, parts: GPParts) -> Iterator[Tensor]:
        """Evaluates the NLL of each task on all points, in chunks of tasks.

        Args:
            parts: The GP.

        Yields:
            For each chunk of tasks of similar size, a differentiable tensor with a value for each
            task of the chunk.
        """
        every = torch.arange(len(self.sizes), device=self.sizes.device)
        for chunk in groups_of_like_size(self.sizes, every, CHUNK_ELEMENTS):
            yield self._values(parts, self.tasks[chunk], is_padded=True)

    def _values(self, parts: GPParts, tasks: PaddedTasks, is_padded: bool) -> Tensor:
        noise = tasks.known_or(parts.noise) if self._any_known_noise else None
        return parts.nll(tasks.X, tasks.Y, tasks.mask if is_padded else None, noise)


@dataclass(frozen=True)
class GroupEKL:
    """The EKL, averaged over matching groups.

    Args:
        X: A ``G x P x d`` tensor: each group's inputs, padded by the group's first input.
        empirical: The mean and covariance of the tasks' outcomes at these inputs.
        known_noise: A ``G x P`` tensor: known noise variances, averaged over a group's tasks. A
            task with inferred noise contributes zero.
        inferred: A ``G x 1`` tensor: the share of a group's tasks whose noise is inferred.
    """

    X: Tensor
    empirical: EmpiricalGaussian
    known_noise: Tensor
    inferred: Tensor

    @classmethod
    def of(cls, tasks: PaddedTasks, groups: Sequence[MatchingGroup]) -> GroupEKL:
        """Estimates the groups' empirical Gaussians.

        Args:
            tasks: The padded tasks, in the prior's units.
            groups: The groups of matching inputs.

        Returns:
            The loss, without groups in which all tasks have the same outcomes.

        Raises:
            InputDataError: If in every group all tasks have the same outcomes.
        """
        kept = [group for group in groups if len(_whiten(tasks.Y[group]))]
        if len(kept) < len(groups):
            logger.info(
                "The EKL ignores %d groups in which all tasks have the same outcomes.",
                len(groups) - len(kept),
            )
        if not kept:
            raise InputDataError(
                "Source tasks with matching inputs do not differ in their outcomes at these "
                "inputs, so the EKL is undefined: use objective='nll'."
            )
        inputs = [tasks.X[group.tasks[0], group.rows[:, 0]] for group in kept]
        size = max(map(len, inputs))
        noise = [tasks.Yvar[group].mean(-1) for group in kept]
        inferred = (~tasks.fixed_noise).to(tasks.Y)
        return cls(
            X=torch.stack([torch.cat([X, X[:1].expand(size - len(X), -1)]) for X in inputs]),
            empirical=EmpiricalGaussian.of([tasks.Y[group] for group in kept]),
            known_noise=pad_sequence(noise, batch_first=True),
            inferred=torch.stack([inferred[group.tasks].mean(0, keepdim=True) for group in kept]),
        )

    def full(self, parts: GPParts) -> Tensor:
        """Evaluates the loss, a differentiable tensor without dimensions."""
        mean, covariance = parts(self.X)
        noise = self.known_noise + self.inferred * parts.noise
        return ekl(mean, covariance + torch.diag_embed(noise), self.empirical).mean()


#: The objective of pre-training.
Objective = Literal["nll", "ekl", "nll+ekl"]


@dataclass(frozen=True)
class SourceLoss:
    """The weighted sum of NLL and EKL that pre-training minimizes.

    Args:
        task_nll: The NLL; ``None`` if the objective does not contain the NLL.
        group_ekl: The EKL; ``None`` if the objective does not contain the EKL.
        nll_weight: The weight of the NLL.
    """

    task_nll: TaskNLL | None
    group_ekl: GroupEKL | None
    nll_weight: float = 1.0

    @classmethod
    def of(
        cls,
        tasks: PaddedTasks,
        objective: Objective,
        nll_weight: float = 1.0,
        batch_size: int | None = None,
        task_batch_size: int | None = None,
        seed: int = 0,
        groups: Sequence[Sequence[int]] | None = None,
        tolerance: float = 1e-8,
        max_points: int = 1000,
    ) -> SourceLoss:
        """Builds the loss of an objective.

        Args:
            tasks: The padded tasks, in the prior's units and in double precision.
            objective: The objective.
            nll_weight: The weight of the NLL in a mixed objective.
            batch_size: The number of points of a task in a sub-sample; all by default.
            task_batch_size: The number of tasks in a sub-sample; all by default.
            seed: The seed of the sub-samples.
            groups: As for :func:`find_matching_groups`.
            tolerance: As for :func:`find_matching_groups`.
            max_points: The maximum number of inputs of a group; larger groups are subsampled.

        Returns:
            The loss.

        Raises:
            InputDataError: If the objective contains the EKL, but there are no matching inputs.
            ValueError: If the objective is unknown, or the weight is not positive.
        """
        check_choice("objective", objective, Objective)
        if not nll_weight > 0:
            raise ValueError(
                f"nll_weight={nll_weight} must be positive. For no NLL, use objective='ekl'."
            )
        task_nll = None
        if "nll" in objective:
            task_nll = TaskNLL(tasks, RandomBatches(tasks, batch_size, task_batch_size, seed))
        if "ekl" not in objective:
            return cls(task_nll, None)
        inputs = [X[mask] for X, mask in zip(tasks.X, tasks.mask, strict=True)]
        generator = torch.Generator().manual_seed(seed)
        found = find_matching_groups(inputs, groups, tolerance)
        for number, group in enumerate(found):
            if len(group.rows) > max_points:
                kept = torch.randperm(len(group.rows), generator=generator)[:max_points]
                found[number] = group._replace(rows=group.rows[kept.sort().values])
        return cls(task_nll, GroupEKL.of(tasks, found), nll_weight)

    def evaluate(self, parts: GPParts, step: int | None = None) -> Tensor:
        """Evaluates the loss, and adds its gradient to ``grad`` of the parameters.

        Args:
            parts: The GP.
            step: The number of the step whose sub-sample is used; by default, all points are used.

        Returns:
            The loss, a tensor without dimensions.
        """
        total = parts.noise.new_zeros(())
        for summand in self._summands(parts, step):
            summand.backward()  # one by one, because the graphs of all chunks need much memory
            total = total + summand.detach()
        return total

    def _summands(self, parts: GPParts, step: int | None) -> Iterator[Tensor]:
        if self.task_nll is not None and step is not None:
            yield self.nll_weight * self.task_nll.sampled(parts, step)
        elif self.task_nll is not None:
            weight = self.nll_weight / len(self.task_nll.sizes)
            for values in self.task_nll.of_tasks(parts):
                yield weight * values.sum()
        if self.group_ekl is not None:
            yield self.group_ekl.full(parts)
