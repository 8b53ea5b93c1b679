"""Pre-training of a GP on source tasks: objectives, optimization and early stopping.

Pre-training assumes that all tasks are draws of one GP [Wang2024hyperbo]_. The NLL is the negative
log marginal likelihood of the tasks. The EKL (empirical Kullback-Leibler divergence) compares the
GP with the empirical mean and covariance of tasks that were evaluated at the same inputs.

Pre-training uses BoTorch's optimizers: Adam on sub-samples, or L-BFGS on all points. If some tasks
are held out, a run stops early once the NLL of these tasks no longer falls. An interrupted run
cannot be resumed.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from botorch.optim.closures import NdarrayOptimizationClosure
from botorch.optim.core import torch_minimize
from botorch.optim.utils import get_parameters
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import CosineAnnealingLR

from botorch_transfer.gp.conditioned import groups_of_like_size
from botorch_transfer.gp.likelihood import CHUNK_ELEMENTS, gaussian_loss, nll
from botorch_transfer.gp.objective import (
    drop_gradients,
    gradient_closure,
    keep_freed_memory,
    minimize_batched,
)
from botorch_transfer.gp.tasks import PaddedTasks, check_choice
from botorch_transfer.hyperbo.features import GPParts
from botorch_transfer.progress import track

logger = logging.getLogger(__name__)

#: Objective of pre-training, see :class:`PretrainingOptions`.
Objective = Literal["nll", "ekl", "nll+ekl"]

Optimizer = Literal["adam", "lbfgs"]

#: Number of random numbers that are drawn at once, for several steps of Adam. Separate draws for
#: each step would be slow.
RANDOM_NUMBERS = 2**17

#: A run of Adam fails after this number of consecutive steps without a finite loss.
_MAX_SKIPPED = 20


@dataclass(frozen=True)
class PretrainingOptions:
    """Options for pre-training a ``PretrainedPrior`` on source tasks.

    Args:
        optimizer: ``"adam"`` or ``"lbfgs"``. The default depends on the objective, as in the paper:
            Adam on sub-samples if the objective contains the NLL, L-BFGS for the EKL alone.
        steps: The number of steps of Adam (3,000 by default) or iterations of L-BFGS (100 by
            default).
        learning_rate: Adam's initial learning rate.
        decay: Whether the learning rate falls to zero along a cosine. The paper's settings are
            ``steps=50_000, learning_rate=1e-3, decay=False``.
        batch_size: The number of points of each task that a step of Adam uses. The points are drawn
            uniformly for each step. A task with fewer points contributes all its points.
        task_batch_size: The number of tasks that a step of Adam uses. The tasks are also drawn
            uniformly for each step.
        validation_every: The number of steps between evaluations of the validation loss, which is
            the NLL of the held-out tasks; by default a fiftieth of all steps.
        patience: The run stops after ``patience`` consecutive evaluations of the validation loss
            without improvement.
        seed: The seed of the sub-samples and of the choice of held-out tasks.
        progress: ``True`` for a progress bar over the steps, ``False`` for none. By default a run
            of more than three seconds logs its expected duration, and shows a bar if the output is
            a terminal.
        objective: ``"nll"``, for any data; ``"ekl"``, for tasks that were evaluated at the same
            inputs; or ``"nll+ekl"``. The empirical covariance of ``N`` tasks has at most rank
            ``N - 1``. If ``N`` tasks share more than ``N`` inputs, the EKL leaves part of the GP
            undetermined: use ``"nll"`` or ``"nll+ekl"`` instead.
        nll_weight: The weight of the NLL in ``"nll+ekl"``.
        groups: Sets of task indices for the EKL. The tasks of a set are compared at the inputs that
            all of them share. By default, all groups of tasks with shared inputs are found.
        tolerance: Two values of an input dimension count as equal if they differ by no more than
            ``tolerance``. The default is 1e-8, or 1e-6 for data in single precision.
        max_points: The maximum number of shared inputs of a group of tasks in the EKL. If a group
            has more shared inputs, the EKL uses a random sub-sample of ``max_points`` inputs.
        hold_out: The share of source tasks to hold out for early stopping, for instance 0.25. A
            first run trains without these tasks, and finds the number of steps with the lowest NLL
            of the held-out tasks. A second run takes this number of steps on all tasks. Use early
            stopping if the mean or the kernel has a network: with a dozen tasks, a network overfits
            after a few hundred steps. ``hold_out`` cannot be combined with ``groups``.

    Raises:
        ValueError: If an option is unknown or out of range.

    Example:
        >>> PretrainingOptions(steps=100).steps
        100
    """

    optimizer: Optimizer | None = None
    steps: int | None = None
    learning_rate: float = 1e-2
    decay: bool = True
    batch_size: int = 50
    task_batch_size: int = 64
    validation_every: int | None = None
    patience: int = 10
    seed: int = 0
    progress: bool | None = None
    objective: Objective = "nll"
    nll_weight: float = 0.1
    groups: Sequence[Sequence[int]] | None = None
    tolerance: float | None = None
    max_points: int = 1000
    hold_out: float | None = None

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer or "adam", Optimizer)
        check_choice("objective", self.objective, Objective)
        sizes = "batch_size", "task_batch_size", "validation_every", "patience", "max_points"
        for name in ("learning_rate", "nll_weight", *sizes):
            value = getattr(self, name)
            if not (value is None and name == "validation_every") and not (value or 0) > 0:
                raise ValueError(f"{name}={value} must be positive.")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps={self.steps} must not be negative.")
        if self.hold_out is not None and not 0 < self.hold_out < 1:
            raise ValueError(f"hold_out={self.hold_out} must lie between 0 and 1.")
        if self.hold_out is not None and self.groups is not None:
            raise ValueError("groups= does not work with hold_out=: leave out either argument.")


# --------------------------------------------------------------------------------------- EKL


@dataclass(frozen=True)
class EmpiricalGaussian:
    r"""Empirical mean and covariance of outcomes, for groups of tasks with shared inputs.

    A group is a set of tasks that were evaluated at the same inputs. For a group of ``N`` tasks,
    ``Σ̃ = A Aᵀ`` is the covariance, over the tasks, of the outcomes at the group's inputs. The rank
    of ``Σ̃`` is less than ``N``, and often less than the number of inputs, so :func:`ekl` compares a
    GP with the group only in the range (the column space) of ``Σ̃``. Zeros pad each group's tensors
    to the largest number of inputs ``P`` and the largest rank ``R`` of all groups.

    Args:
        mean: A ``G x P`` tensor: for each of ``G`` groups, the mean ``μ̃`` over the group's tasks
            at each of ``P`` inputs.
        whitening: A ``G x R x P`` tensor: the pseudo-inverse ``A⁺`` of each group's factor ``A``,
            where ``R`` is the largest rank of all groups. Rows beyond a group's rank are zero.
    """

    mean: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, outcomes: Sequence[Tensor]) -> Self:
        r"""Estimates mean and covariance of the outcomes of each group of tasks.

        Let ``Y`` be a group's outcomes, ``μ̃`` their mean over the ``N`` tasks, and ``ε`` the
        machine epsilon. The rank of the covariance is the number of singular values of
        ``(Y - μ̃) / √N`` above ``max(P, N) ε`` times the largest singular value. With a lower
        threshold, the whitening would divide by rounding errors.

        Args:
            outcomes: For each group a ``P_g x N_g`` tensor: the outcomes of ``N_g`` tasks at
                ``P_g`` shared inputs. If all tasks of a group have the same outcomes, the
                group's covariance has rank zero.

        Returns:
            The means and pseudo-inverses of all groups.

        Example:
            >>> EmpiricalGaussian.of([torch.tensor([[1.0, 3.0], [2.0, 2.0]])]).mean
            tensor([[2., 2.]])
        """
        mean = pad_sequence([Y.mean(dim=-1) for Y in outcomes], batch_first=True)
        whitenings = [pad(_whiten(Y), (0, mean.shape[-1] - len(Y))) for Y in outcomes]
        return cls(mean, pad_sequence(whitenings, batch_first=True))


def _whiten(Y: Tensor) -> Tensor:
    """Computes the pseudo-inverse ``A⁺`` of a factor ``A`` of the empirical covariance ``A Aᵀ``.

    Args:
        Y: A ``P x N`` tensor: the outcomes of ``N`` tasks at ``P`` shared inputs.

    Returns:
        An ``r x P`` tensor, for a covariance of rank ``r``. If all tasks have the same outcomes,
        ``r`` is zero.
    """
    centered = (Y - Y.mean(dim=-1, keepdim=True)) / math.sqrt(Y.shape[-1])
    U, singular, _ = torch.linalg.svd(centered, full_matrices=False)
    tolerance = max(Y.shape) * torch.finfo(Y.dtype).eps
    # If outcomes are equal up to rounding, all singular values are rounding errors.
    largest = torch.where(singular[0] > tolerance * Y.abs().max(), singular[0], torch.inf)
    rank = int((singular > tolerance * largest).sum())
    return U[:, :rank].mT / singular[:rank].unsqueeze(-1)


def ekl(mean: Tensor, covariance: Tensor, empirical: EmpiricalGaussian) -> Tensor:
    r"""Computes the divergence (EKL) between a GP and the outcomes of each group of tasks.

    EKL is the empirical Kullback-Leibler divergence of Eq. 5 and 9 of [Wang2024hyperbo]_. Let ``μ``
    and ``Σ`` be the GP's mean and covariance. Let ``μ̃`` and ``Σ̃ = A Aᵀ`` be a group's empirical
    mean and covariance, of rank ``r``. In the range of ``Σ̃``, with ``μ_p = A⁺ (μ - μ̃)`` and
    ``Σ_p = A⁺ Σ A⁺ᵀ``,

    .. code-block:: text

        EKL = ½ (tr Σ_p⁻¹ + μ_pᵀ Σ_p⁻¹ μ_p + ln|Σ_p| - r)

    If ``Σ̃`` has full rank, this is the Kullback-Leibler divergence ``KL(N(μ̃, Σ̃) ‖ N(μ, Σ))``.

    Args:
        mean: A ``G x P`` tensor: the GP's mean at each group's inputs. Values at the padding are
            ignored, but must be finite.
        covariance: A ``G x P x P`` tensor: the GP's covariance at these inputs, noise included.
        empirical: The groups' empirical Gaussians.

    Returns:
        A ``G`` tensor with a value for each group, differentiable in mean and covariance. The value
        is NaN if the group's ``Σ_p`` is not positive definite, even with jitter.

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
    """A group of source tasks that were evaluated at the same inputs.

    Args:
        tasks: An ``N`` tensor of task indices, ascending.
        rows: A ``P x N`` tensor: the row index of each shared input in the data of each task.
    """

    tasks: Tensor
    rows: Tensor


def find_matching_groups(
    inputs: Sequence[Tensor],
    groups: Sequence[Sequence[int]] | None = None,
    tolerance: float = 1e-8,
) -> list[MatchingGroup]:
    """Finds groups of source tasks that were evaluated at the same inputs.

    By default, a group consists of a set of tasks and of the inputs at which exactly these tasks
    were evaluated. For example, the inputs that all tasks share belong to one group, and the inputs
    that only half of the tasks share belong to another group. If a task was evaluated at an input
    repeatedly, only the first evaluation counts.

    Args:
        inputs: Each task's ``n_i x d`` tensor of inputs.
        groups: Sets of task indices. The result has one group for each set, with the inputs that
            all tasks of the set share. By default, all groups are found.
        tolerance: Two values of an input dimension count as equal if they differ by no more than
            ``tolerance``.

    Returns:
        The groups, each of two tasks or more, sorted by their task indices.

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
        raise ValueError("groups= is empty: leave out groups= to use all shared inputs.")
    first_row = _first_rows(inputs, tolerance)
    visited = first_row >= 0
    found = _found_groups(visited) if groups is None else _given_groups(visited, groups)
    matching = []
    for tasks, points in found:
        rows = first_row[np.ix_(points, tasks)]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]  # ordered by the first task's row index
        index = torch.tensor(tasks, device=inputs[0].device)
        matching.append(MatchingGroup(index, torch.from_numpy(rows).to(index.device)))
    return matching


def _first_rows(inputs: Sequence[Tensor], tolerance: float) -> Rows:
    """Finds the first row of each task at each distinct input.

    Returns:
        A matrix with one row for each distinct input and one column for each task. An element is
        the index of the task's first row at this input, or -1 if the task was not evaluated at this
        input.
    """
    stacked = torch.cat(list(inputs)).detach().cpu().double().numpy()
    codes = [_codes(column, tolerance) for column in stacked.T]
    task = np.repeat(np.arange(len(inputs)), [len(X) for X in inputs])
    row = pd.Series(np.concatenate([np.arange(len(X)) for X in inputs]))
    return row.groupby([*codes, task]).min().unstack(fill_value=-1).to_numpy()


def _codes(values: npt.NDArray[np.float64], tolerance: float) -> Rows:
    """Divides values into groups of almost equal values, and returns each value's group number.

    In sorted order, neighbours belong to one group if they differ by no more than ``tolerance``.
    """
    # Values are not rounded, because rounding separates close values at a rounding boundary.
    order = np.argsort(values, kind="stable")
    steps = np.diff(values[order], prepend=values[order[:1]]) > tolerance
    codes = np.empty(len(values), dtype=np.intp)
    codes[order] = np.cumsum(steps)
    return codes


def _found_groups(visited: npt.NDArray[np.bool_]) -> list[tuple[Sequence[int], Sequence[int]]]:
    patterns, pattern_of = np.unique(visited, axis=0, return_inverse=True)
    shared = np.flatnonzero(patterns.sum(axis=-1) > 1).tolist()
    if not shared:
        text = "No two source tasks share an input, but the EKL objective needs shared inputs"
        raise InputDataError(f"{text}: use objective='nll'.")
    points_of = {k: np.flatnonzero(pattern_of == k).tolist() for k in shared}
    return sorted((np.flatnonzero(patterns[k]).tolist(), points_of[k]) for k in shared)


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
    the seed and the index of the step.

    Args:
        tasks: The padded tasks.
        options: The numbers of points and tasks in a batch, and the seed.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> tasks = PaddedTasks(X, X.sum(-1), 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> batches = RandomBatches(tasks, PretrainingOptions(batch_size=4, task_batch_size=2))
        >>> batches[0].X.shape, torch.equal(batches[0].X, batches[1].X)
        (torch.Size([2, 4, 2]), False)
    """

    def __init__(self, tasks: PaddedTasks, options: PretrainingOptions) -> None:
        self.tasks, self.seed = tasks, options.seed
        sizes: list[int] = tasks.num_points.tolist()
        self.batch_size = min(options.batch_size, max(sizes))
        self.task_batch_size = min(options.task_batch_size, len(sizes))
        self.is_padded = min(sizes) < self.batch_size
        self.block_size = max(1, RANDOM_NUMBERS // (self.task_batch_size * max(sizes)))
        self._block: int | None = None

    def __getitem__(self, step: int) -> PaddedTasks:
        """Returns the random sub-sample of tasks and points for one step of Adam."""
        block, place = divmod(step, self.block_size)
        if block != self._block:
            self._block, self._drawn = block, self._draw(block)
        return PaddedTasks(*(part[place] for part in self._drawn))

    def _draw(self, block: int) -> list[Tensor]:
        """Draws the random sub-samples for several consecutive steps of Adam at once.

        Returns:
            The fields of a :class:`PaddedTasks`, each with a leading dimension for the steps.
        """
        tasks, (M, N) = self.tasks, self.tasks.mask.shape
        S, T, device = self.block_size, self.task_batch_size, tasks.X.device
        # Each block of steps has its own seed.
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


# ---------------------------------------------------------------------------- NLL and EKL of tasks


def nll_of_batch(parts: GPParts, tasks: PaddedTasks, is_padded: bool = True) -> Tensor:
    """Evaluates the negative log marginal likelihood (NLL) of each task, for all tasks at once.

    Args:
        parts: The GP.
        tasks: The padded tasks, in the prior's units.
        is_padded: Whether some tasks may contain padding.

    Returns:
        A differentiable tensor with a value for each task.
    """
    mean, covariance = parts(tasks.X)
    mask = tasks.mask if is_padded else None
    return nll(mean, covariance, tasks.Y, mask, tasks.known_or(parts.noise))


def nll_of_tasks(parts: GPParts, tasks: PaddedTasks) -> Iterator[Tensor]:
    """Evaluates the negative log marginal likelihood (NLL) of each task, in chunks of tasks.

    Args:
        parts: The GP.
        tasks: The padded tasks, in the prior's units.

    Yields:
        For each chunk of tasks of similar size, a differentiable tensor with a value for each task
        of the chunk.
    """
    every = torch.arange(len(tasks.X), device=tasks.X.device)
    for chunk in groups_of_like_size(tasks.num_points, every, CHUNK_ELEMENTS):
        yield nll_of_batch(parts, tasks[chunk])


@dataclass(frozen=True)
class GroupEKL:
    """The divergence (EKL) between a GP and each group of tasks, averaged over the groups.

    The tasks of a group share inputs.

    Args:
        X: A ``G x P x d`` tensor: the shared inputs of each group. If a group has fewer than ``P``
            inputs, copies of its first input fill the other rows.
        empirical: The empirical mean and covariance of the tasks' outcomes at these inputs.
        known_noise: A ``G x P`` tensor: known noise variances, averaged over the tasks of each
            group. A task with inferred noise contributes zero.
        inferred: A ``G x 1`` tensor: the share of tasks with inferred noise in each group.
    """

    X: Tensor
    empirical: EmpiricalGaussian
    known_noise: Tensor
    inferred: Tensor

    @classmethod
    def of(cls, tasks: PaddedTasks, groups: Sequence[MatchingGroup]) -> GroupEKL:
        """Builds the loss from the empirical mean and covariance of each group's outcomes.

        Args:
            tasks: The padded tasks, in the prior's units.
            groups: The groups of tasks with shared inputs.

        Returns:
            The loss. Groups in which all tasks have the same outcomes are left out.

        Raises:
            InputDataError: If in every group all tasks have the same outcomes.
        """
        kept = [group for group in groups if len(_whiten(tasks.Y[group]))]
        if not kept:
            raise InputDataError(
                "All source tasks that share inputs have the same outcomes at these inputs, so the "
                "EKL is undefined: use objective='nll'."
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
        """Evaluates the EKL of a GP, averaged over the groups: a differentiable scalar tensor."""
        mean, covariance = parts(self.X)
        noise = self.known_noise + self.inferred * parts.noise
        return ekl(mean, covariance + torch.diag_embed(noise), self.empirical).mean()


class SourceLoss:
    """The loss that pre-training minimizes: a weighted sum of the source tasks' NLL and EKL.

    Args:
        tasks: The padded tasks, in the prior's units and in double precision.
        options: The objective, the sizes of the sub-samples, and the groups of tasks with shared
            inputs.

    Raises:
        InputDataError: If the objective contains the EKL, but there are no matching inputs.
    """

    def __init__(self, tasks: PaddedTasks, options: PretrainingOptions) -> None:
        self.tasks, objective = tasks, options.objective
        #: The sub-samples of the NLL; ``None`` if the objective does not contain the NLL.
        self.batches: RandomBatches | None = None
        #: The EKL; ``None`` if the objective does not contain the EKL.
        self.group_ekl: GroupEKL | None = None
        self.nll_weight = options.nll_weight if objective == "nll+ekl" else 1.0
        if "nll" in objective:
            self.batches = RandomBatches(tasks, options)
        if "ekl" in objective:
            inputs = [X[mask] for X, mask in zip(tasks.X, tasks.mask, strict=True)]
            tolerance = 1e-8 if options.tolerance is None else options.tolerance
            found = find_matching_groups(inputs, options.groups, tolerance)
            generator = torch.Generator().manual_seed(options.seed)
            for number, group in enumerate(found):
                if len(group.rows) > options.max_points:
                    kept = torch.randperm(len(group.rows), generator=generator)
                    rows = group.rows[kept[: options.max_points].sort().values]
                    found[number] = group._replace(rows=rows)
            self.group_ekl = GroupEKL.of(tasks, found)

    def evaluate(self, parts: GPParts, step: int | None = None) -> Tensor:
        """Evaluates the loss, and adds the gradient to the ``grad`` of the GP's parameters.

        Args:
            parts: The GP.
            step: The index of a step of Adam. If given, the NLL uses only this step's sub-sample of
                tasks and points. If omitted, the NLL uses all points. The EKL does not depend on
                ``step``.

        Returns:
            The loss, a scalar tensor.
        """
        total = parts.noise.new_zeros(())
        for summand in self._summands(parts, step):
            # Differentiates one summand at a time, because the graphs of all need much memory.
            summand.backward()
            total = total + summand.detach()
        return total

    def _summands(self, parts: GPParts, step: int | None) -> Iterator[Tensor]:
        if self.batches is not None and step is not None:
            batch = self.batches[step]
            yield self.nll_weight * nll_of_batch(parts, batch, self.batches.is_padded).mean()
        elif self.batches is not None:
            weight = self.nll_weight / len(self.tasks.X)
            for values in nll_of_tasks(parts, self.tasks):
                yield weight * values.sum()
        if self.group_ekl is not None:
            yield self.group_ekl.full(parts)


# --------------------------------------------------------------------------------------- a run


@dataclass
class LearningCurve:
    """The training and validation losses of a run of pre-training.

    Args:
        loss: The training loss before each step. For Adam, it is the loss on the step's sub-sample.
            A step without a finite loss was skipped.
        validation_steps: The numbers of steps after which the validation loss was computed.
        validation_loss: The mean NLL of the validation tasks after these steps.
        best_step: The number of steps after which the validation loss is lowest. Without validation
            tasks, the number of all steps.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> prior = PretrainedPrior.stationary(2).fit([(X, X.sum(-1, keepdim=True))], steps=10)
        >>> len(prior.learning_curve.loss)
        10
    """

    loss: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_step: int = 0


class GradientFit:
    """One run of pre-training. BoTorch's optimizers call this object to decide whether to stop.

    Args:
        parts: The GP, changed in place.
        loss: The loss on the source tasks.
        validation: The held-out tasks; ``None`` if no tasks are held out.
        options: How to optimize.
        stop: The number of steps after which the run stops; by default all steps of ``options``.
            The schedule of the learning rate does not depend on ``stop``.
    """

    def __init__(
        self,
        parts: GPParts,
        loss: SourceLoss,
        validation: PaddedTasks | None,
        options: PretrainingOptions,
        stop: int | None = None,
    ) -> None:
        self.parts, self.loss, self.validation, self.options = parts, loss, validation, options
        default = "lbfgs" if options.objective == "ekl" else "adam"
        self.is_adam = (options.optimizer or default) == "adam"
        steps = 3000 if self.is_adam else 100
        self.num_steps = steps if options.steps is None else options.steps
        self.stop = self.num_steps if stop is None else min(stop, self.num_steps)
        self.validation_every = options.validation_every or max(1, self.num_steps // 50)
        self.parameters = get_parameters(parts, requires_grad=True)
        self.curve = LearningCurve()
        self.bar = track(range(self.stop), "pre-training", self.stop, options.progress)

    def run(self) -> LearningCurve:
        """Trains until the last step, or until the validation loss no longer falls.

        Returns:
            The training and validation losses.

        Raises:
            ModelFittingError: If the loss is repeatedly not finite.
        """
        keep_freed_memory()
        if self.parameters:
            if self.stop > 0:
                (self._run_adam if self.is_adam else self._run_lbfgs)()
            self._validate()
        self.bar.close()
        if self.validation is None:
            self.curve.best_step = len(self.curve.loss)
        drop_gradients(self.parameters)
        return self.curve

    def _run_adam(self) -> None:
        adam = partial(torch.optim.Adam, lr=self.options.learning_rate, fused=True)
        cosine = partial(CosineAnnealingLR, T_max=self.num_steps)
        torch_minimize(
            gradient_closure(
                lambda: self.loss.evaluate(self.parts, len(self.curve.loss)), self.parameters
            ),
            self.parameters,
            optimizer=adam,
            scheduler=cosine if self.options.decay else None,
            step_limit=self.stop,
            stopping_criterion=self,
        )

    def _run_lbfgs(self) -> None:
        full = gradient_closure(lambda: self.loss.evaluate(self.parts), self.parameters)
        closure = NdarrayOptimizationClosure(full, self.parameters)
        is_over = self(torch.as_tensor(closure()[0]))

        def evaluate(theta: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = closure(theta[0].numpy())
            return torch.as_tensor(value).reshape(1), torch.from_numpy(gradient).unsqueeze(0)

        def end_iteration(intermediate_result: Any) -> None:  # SciPy requires this name
            nonlocal is_over
            closure.state = intermediate_result.x
            is_over = self(torch.as_tensor(intermediate_result.fun))
            if is_over:
                raise StopIteration

        theta, _ = minimize_batched(
            evaluate,
            torch.from_numpy(closure.state).unsqueeze(0),
            torch.tensor([[-torch.inf], [torch.inf]]).expand(2, len(closure.state)),
            self.stop,
            callback=end_iteration,
        )
        closure.state = theta[0].numpy()
        if not is_over:
            self.curve.loss.pop()  # drops the loss after the last step: no step follows

    def reset(self) -> None:
        """Does nothing, because each object is used for a single run."""

    def __call__(self, fvals: Tensor) -> bool:
        """Records the current loss, and evaluates the validation loss every few steps.

        BoTorch's optimizers call this method before each step.

        Args:
            fvals: The loss before the step.

        Returns:
            Whether to stop instead of taking the step.
        """
        step, curve = len(self.curve.loss), self.curve
        if step % self.validation_every == 0:
            self._validate()
        if sum(each > curve.best_step for each in curve.validation_steps) >= self.options.patience:
            return True
        curve.loss.append(float(fvals))
        next(self.bar, None)
        if not math.isfinite(curve.loss[-1]):
            logger.info("The loss is not finite, so step %d is skipped.", step)
            limit = _MAX_SKIPPED if self.is_adam else 1
            last = curve.loss[-limit:]
            if len(last) == limit and not any(map(math.isfinite, last)):
                raise ModelFittingError(
                    f"The loss of pre-training is not finite after {step} steps, because a "
                    "covariance matrix is not positive definite. Check the source data for extreme "
                    "scales, or use a larger noise= or a smaller learning_rate=."
                )
        return False

    @torch.no_grad()
    def _validate(self) -> None:
        step, curve = len(self.curve.loss), self.curve
        if self.validation is None or curve.validation_steps[-1:] == [step]:
            return
        loss = float(torch.cat(list(nll_of_tasks(self.parts, self.validation))).mean())
        curve.validation_steps.append(step)
        curve.validation_loss.append(loss)
        finite = [value for value in curve.validation_loss if math.isfinite(value)]
        if loss == min(finite, default=math.nan):
            curve.best_step = step


# ----------------------------------------------------------------------------- held-out tasks


def pretrain(parts: GPParts, tasks: PaddedTasks, options: PretrainingOptions) -> LearningCurve:
    """Trains a GP on all source tasks. With ``hold_out``, a first run finds the number of steps.

    Args:
        parts: The GP, changed in place.
        tasks: The source tasks.
        options: How to optimize.

    Returns:
        The training losses of the run on all tasks, and the validation losses of the first run.

    Raises:
        InputDataError: If there are too few tasks to hold one out, or no matching inputs for the
            EKL.
        ModelFittingError: If the loss is repeatedly not finite.
    """
    if options.hold_out is None:
        return GradientFit(parts, SourceLoss(tasks, options), None, options).run()
    kept, held_out = split(len(tasks.X), options.hold_out, options.seed)
    loss = SourceLoss(tasks[kept], options)
    trial = GradientFit(deepcopy(parts), loss, tasks[held_out], options).run()
    loss = SourceLoss(tasks, options)
    curve = GradientFit(parts, loss, None, options, trial.best_step).run()
    return replace(trial, loss=curve.loss, best_step=curve.best_step)


def split(num_tasks: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Splits source tasks randomly into training tasks and held-out tasks.

    Args:
        num_tasks: The number of tasks.
        share: The share of tasks to hold out, between 0 and 1. At least one task is held out.
        seed: The seed.

    Returns:
        The indices of the kept tasks and of the held-out tasks, ascending.

    Raises:
        InputDataError: If fewer than two tasks would be kept.

    Example:
        >>> kept, held_out = split(8, 0.25, seed=0)
        >>> len(kept), len(held_out)
        (6, 2)
    """
    count = max(1, round(share * num_tasks))
    if num_tasks - count < 2:
        raise InputDataError(
            f"hold_out={share} leaves {num_tasks - count} of {num_tasks} source tasks to train on, "
            "but two are needed: leave out hold_out=, and choose steps= yourself."
        )
    order = torch.randperm(num_tasks, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values
