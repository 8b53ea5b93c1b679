"""Source tasks as one padded batch, and the scale of their outcomes.

Read this for how tasks of different sizes become tensors, how much memory that may take, and what
``outcome_scale`` means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.data import MAX_JOINT_BYTES
from botorch_transfer.gp.conditioned import pad_inputs
from botorch_transfer.outcome_transforms import PooledStandardize, usable_std

MAX_PADDED_BYTES = MAX_JOINT_BYTES
"""Memory that a padded batch may take by default."""

_BYTES_IN_FIT, _BYTES_WHEN_CONDITIONED = 90, 40
"""Peak memory for an element of a covariance matrix, in double precision (measured)."""


def check_padded_size(
    names: Sequence[str], sizes: Sequence[int], max_bytes: float = MAX_PADDED_BYTES
) -> None:
    """Refuses source data whose padded batch would not fit into memory.

    Every task takes as much memory as the largest one, so that one large task among many small ones
    makes the batch large.

    Args:
        names: The tasks' names.
        sizes: The tasks' numbers of points.
        max_bytes: Memory that the batch may take.

    Raises:
        InputDataError: If it would take more.

    Example:
        >>> check_padded_size(["monday", "tuesday"], [100, 200])
    """
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    needed = max(_BYTES_IN_FIT, _BYTES_WHEN_CONDITIONED * len(sizes)) * sizes[largest] ** 2
    if needed > max_bytes:
        raise InputDataError(
            f"Source task {names[largest]!r} has {sizes[largest]:,} points, and a batch of "
            f"{len(sizes)} tasks of that size would take about {needed / 2**30:,.1f} GiB of memory "
            f"(the limit is {max_bytes / 2**30:,.1f} GiB): thin out the largest tasks, or raise "
            "max_bytes."
        )


@dataclass(frozen=True)
class PaddedTasks:
    """The data of ``M`` tasks, padded to the ``N`` points of the largest.

    Args:
        X: An ``M x N x d`` tensor of inputs, finite at the padding.
        Y: An ``M x N`` tensor of outcomes, zero at the padding.
        Yvar: An ``M x N`` tensor of known noise variances, zero at the padding and for tasks whose
            noise is inferred.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
        fixed_noise: An ``M`` boolean tensor, ``True`` for tasks whose noise is known.
        covariance: An ``M x N x N`` tensor of covariance in addition to kernel and noise, such as
            the posterior covariance of the level below.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    mask: Tensor
    fixed_noise: Tensor
    covariance: Tensor | None = None

    @classmethod
    def from_datasets(
        cls, datasets: Sequence[SupervisedDataset], transform: InputTransform | None = None
    ) -> PaddedTasks:
        """Pads validated source data.

        Args:
            datasets: The source tasks, each with ``n_m x d`` inputs and ``n_m x 1`` outcomes.
            transform: A frozen transform of the inputs.

        Returns:
            The padded batch, in the data's dtype and on their device.
        """
        inputs = [dataset.X if transform is None else transform(dataset.X) for dataset in datasets]
        outcomes = [dataset.Y.squeeze(-1) for dataset in datasets]
        noises = [
            torch.zeros_like(outcome) if dataset.Yvar is None else dataset.Yvar.squeeze(-1)
            for dataset, outcome in zip(datasets, outcomes, strict=True)
        ]
        device = outcomes[0].device
        sizes = torch.tensor([len(outcome) for outcome in outcomes], device=device)
        mask = torch.arange(int(sizes.max()), device=device) < sizes.unsqueeze(-1)
        return cls(
            X=pad_inputs(pad_sequence(inputs, batch_first=True), mask),
            Y=pad_sequence(outcomes, batch_first=True),
            Yvar=pad_sequence(noises, batch_first=True),
            mask=mask,
            fixed_noise=torch.tensor(
                [dataset.Yvar is not None for dataset in datasets], device=device
            ),
        )

    def __getitem__(self, index: Tensor) -> PaddedTasks:
        """Selects tasks; the padding that none of them needs is cut off."""
        mask = self.mask[index]
        size = int(mask.sum(dim=-1).max())
        return PaddedTasks(
            X=self.X[index, :size],
            Y=self.Y[index, :size],
            Yvar=self.Yvar[index, :size],
            mask=mask[:, :size],
            fixed_noise=self.fixed_noise[index],
            covariance=None if self.covariance is None else self.covariance[index, :size, :size],
        )

    def double(self) -> PaddedTasks:
        """The same tasks in double precision."""
        covariance = None if self.covariance is None else self.covariance.double()
        X, Y, Yvar = self.X.double(), self.Y.double(), self.Yvar.double()
        return replace(self, X=X, Y=Y, Yvar=Yvar, covariance=covariance)

    @property
    def num_points(self) -> Tensor:
        """The number of points of each task, an ``M`` tensor."""
        return self.mask.sum(dim=-1)

    @property
    def is_ragged(self) -> bool:
        """Whether there is any padding."""
        return not bool(self.mask.all())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Each task's outcome mean and standard deviation, two ``M`` tensors.

        The standard deviation is unbiased, as in BoTorch's ``Standardize``, and one for a task
        whose outcomes do not vary.
        """
        # Squares of large outcomes overflow in single precision.
        Y, count = self.Y.double(), self.num_points
        mean = Y.sum(dim=-1) / count
        squares = ((Y - mean.unsqueeze(-1)).square() * self.mask).sum(dim=-1)
        std = (squares / (count - 1).clamp_min(1)).sqrt()
        return mean.to(self.Y), usable_std(std, mean).to(self.Y)

    def standardize(self, mean: Tensor, std: Tensor) -> PaddedTasks:
        """Maps the outcomes to ``(Y - mean) / std``, for two ``M`` tensors."""
        Y = (self.Y - mean.unsqueeze(-1)) / std.unsqueeze(-1) * self.mask
        Yvar = self.Yvar / std.square().unsqueeze(-1)
        return replace(self, Y=Y, Yvar=Yvar)

    def known_or(self, inferred: Tensor) -> Tensor:
        """Each point's noise variance: the known one, or its task's in an ``M`` tensor."""
        inferred = inferred.to(self.Yvar).unsqueeze(-1)
        return torch.where(self.fixed_noise.unsqueeze(-1), self.Yvar, inferred)


OutcomeScale = Literal["per_task", "pooled", "raw"]
"""How source outcomes are scaled: each task by itself, all tasks together, or not at all."""


def check_choice(option: str, value: str, choices: Any) -> None:
    """Refuses an unknown value of an option.

    Args:
        option: The option's name.
        value: Its value.
        choices: The ``Literal`` of its values.

    Raises:
        ValueError: If the value is unknown.

    Example:
        >>> check_choice("outcome_scale", "pooled", OutcomeScale)
    """
    if value not in get_args(choices):
        names = ", ".join(repr(name) for name in get_args(choices))
        raise ValueError(f"Unknown {option} {value!r}: choose one of {names}.")


def outcome_scales(tasks: PaddedTasks, scale: OutcomeScale) -> tuple[Tensor, Tensor]:
    """Finds what to subtract from each task's outcomes, and what to divide them by.

    Args:
        tasks: The padded tasks, in the user's units.
        scale: How to scale them.

    Returns:
        Two ``M`` tensors: means and standard deviations.

    Raises:
        ValueError: If the scale is unknown.
    """
    check_choice("outcome_scale", scale, OutcomeScale)
    mean, std = tasks.moments()
    if scale == "raw":
        return mean.new_zeros(mean.shape), std.new_ones(std.shape)
    if scale == "pooled":
        outcomes = tasks.Y[tasks.mask].double()
        pooled_mean = outcomes.mean()
        std_of_all = outcomes.std() if len(outcomes) > 1 else torch.zeros_like(pooled_mean)
        pooled_std = usable_std(std_of_all, pooled_mean)
        return pooled_mean.to(mean).repeat(len(mean)), pooled_std.to(std).repeat(len(std))
    return mean, std


def outcome_variance(scale: OutcomeScale, source_outcomes: Tensor) -> float:
    """The variance that source outcomes have once they are scaled.

    Args:
        scale: How they are scaled.
        source_outcomes: All source outcomes in the user's units, a tensor of any shape.

    Returns:
        One, unless they stay as they are; one, too, if they are constant.
    """
    if scale != "raw":
        return 1.0
    outcomes = source_outcomes.detach().double()
    return float(usable_std(outcomes.std(correction=0), outcomes.mean())) ** 2


def target_transform(
    scale: OutcomeScale, source_outcomes: Tensor, batch_shape: torch.Size
) -> PooledStandardize | None:
    """Builds the outcome transform that brings a target's outcomes to the scale of the sources.

    Args:
        scale: How the source outcomes were scaled.
        source_outcomes: All source outcomes in the user's units, a tensor of any shape.
        batch_shape: The batch shape of the target model.

    Returns:
        ``None`` if they were not scaled. Otherwise a standardization by the outcomes of the source
        tasks, and of the target too if each source task was standardized by itself.
    """
    if scale == "raw":
        return None
    return PooledStandardize(source_outcomes, scale == "per_task", batch_shape)
