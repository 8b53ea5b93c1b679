"""Source tasks made ready for pre-training: padded, standardized, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
from botorch.models.transforms.input import InputTransform
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.pretraining.matching_groups import find_matching_groups
from botorch_transfer.pretraining.outcome_scale import OutcomeScale, outcome_scales
from botorch_transfer.pretraining.padding import PaddedTasks
from botorch_transfer.pretraining.pretraining_options import PretrainingOptions
from botorch_transfer.pretraining.source_loss import GroupEKL, SourceLoss, TaskNLL

Objective = Literal["nll", "ekl", "nll+ekl"]
"""What pre-training minimizes."""


@dataclass(frozen=True)
class TrainingTasks:
    """The source tasks of a prior and its objective.

    Args:
        tasks: The padded tasks, in the prior's units.
        scale: What the outcomes were standardized by: two ``M`` tensors.
        outcome_scale: Which units these are.
        objective: The objective.
        nll_weight: The weight of the NLL in a mixed objective.
        outcome_mean: The mean of all outcomes in the user's units.
        outcome_spread: Their biased standard deviation.
    """

    tasks: PaddedTasks
    scale: tuple[Tensor, Tensor]
    outcome_scale: OutcomeScale
    objective: Objective
    nll_weight: float
    outcome_mean: Tensor
    outcome_spread: Tensor

    @classmethod
    def of(
        cls,
        datasets: Sequence[SupervisedDataset],
        outcome_scale: OutcomeScale,
        transform: InputTransform | None,
        objective: Objective,
        nll_weight: float,
    ) -> Self:
        """Prepares validated source data.

        Args:
            datasets: The source tasks.
            outcome_scale: The prior's units.
            transform: A frozen transform of the inputs.
            objective: The objective.
            nll_weight: The weight of the NLL in a mixed objective.

        Returns:
            The tasks.

        Raises:
            ValueError: If there are no such units or objective, or the weight is not positive.
        """
        if objective not in get_args(Objective):
            names = ", ".join(repr(name) for name in get_args(Objective))
            raise ValueError(f"Unknown objective {objective!r}: choose one of {names}.")
        if not nll_weight > 0:
            raise ValueError(f"nll_weight={nll_weight} must be positive: or use objective='ekl'.")
        tasks = PaddedTasks.from_datasets(datasets, transform).double()
        scale = outcome_scales(tasks, outcome_scale)
        outcomes = tasks.Y[tasks.mask]
        return cls(
            tasks.standardize(*scale),
            scale,
            outcome_scale,
            objective,
            nll_weight,
            outcomes.mean(),
            outcomes.std(correction=0),
        )

    @property
    def device(self) -> torch.device:
        """Where the tasks are."""
        return self.tasks.X.device

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return len(self.tasks.X)

    @property
    def num_points(self) -> int:
        """The number of evaluations of all tasks."""
        return int(self.tasks.mask.sum())

    def subset(self, numbers: Sequence[int]) -> Self:
        """Selects tasks, by number; the units stay those of all of them."""
        index = torch.tensor(numbers, device=self.device)
        mean, spread = self.scale
        return replace(self, tasks=self.tasks[index], scale=(mean[index], spread[index]))

    def loss(
        self,
        options: PretrainingOptions,
        groups: Sequence[Sequence[int]] | None,
        tolerance: float | None,
        max_points: int,
    ) -> SourceLoss:
        """Builds the objective.

        Args:
            options: The sizes of sub-samples, and the seed of a huge group's.
            groups: Given groups of tasks with matching inputs.
            tolerance: How far matching inputs may differ.
            max_points: The most inputs of a group.

        Returns:
            The loss.

        Raises:
            InputDataError: If the objective needs matching inputs, and there are none.
        """
        task_nll = group_ekl = None
        if "nll" in self.objective:
            task_nll = TaskNLL(
                self.tasks, options.batch_size, options.task_batch_size, options.seed
            )
        if "ekl" in self.objective:
            inputs = [X[mask] for X, mask in zip(self.tasks.X, self.tasks.mask, strict=True)]
            generator = torch.Generator().manual_seed(options.seed)
            found = find_matching_groups(inputs, groups, tolerance)
            thinned = [group.thinned(max_points, generator) for group in found]
            group_ekl = GroupEKL.of(self.tasks, thinned)
        weight = 1.0 if group_ekl is None else self.nll_weight
        return SourceLoss(task_nll, group_ekl, weight)

    def validation(
        self, datasets: Sequence[SupervisedDataset], transform: InputTransform | None
    ) -> TaskNLL:
        """Builds the NLL of further tasks, in the same units.

        Args:
            datasets: The validation tasks.
            transform: The frozen transform of the inputs.

        Returns:
            Their NLL.
        """
        tasks = PaddedTasks.from_datasets(datasets, transform).double()
        if self.outcome_scale == "per_task":
            scale = outcome_scales(tasks, "per_task")
        else:
            scale = (
                self.scale[0][:1].expand(len(datasets)),
                self.scale[1][:1].expand(len(datasets)),
            )
        return TaskNLL(tasks.standardize(*scale))

    def content(self) -> tuple[Any, ...]:
        """What the result of pre-training depends on."""
        return (self.tasks, self.objective, self.nll_weight)
