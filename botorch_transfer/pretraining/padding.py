"""Tasks of different sizes as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from botorch.models.transforms.input import InputTransform
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class PaddedTasks:
    """The data of ``M`` tasks, padded with zeros to the ``N`` points of the largest.

    Args:
        X: An ``M x N x d`` tensor of inputs.
        Y: An ``M x N`` tensor of outcomes.
        Yvar: An ``M x N`` tensor of known noise variances, zero for tasks whose noise is inferred.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
        fixed_noise: An ``M`` boolean tensor, ``True`` for tasks whose noise is known.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    mask: Tensor
    fixed_noise: Tensor

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
        return cls(
            X=pad_sequence(inputs, batch_first=True),
            Y=pad_sequence(outcomes, batch_first=True),
            Yvar=pad_sequence(noises, batch_first=True),
            mask=torch.arange(int(sizes.max()), device=device) < sizes.unsqueeze(-1),
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
        )

    @property
    def num_points(self) -> Tensor:
        """The number of points of each task, an ``M`` tensor."""
        return self.mask.sum(dim=-1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Each task's outcome mean and standard deviation, two ``M`` tensors.

        The deviation is unbiased, as in BoTorch's ``Standardize``, and one for a task whose
        outcomes do not vary.
        """
        count = self.num_points
        mean = self.Y.sum(dim=-1) / count
        squares = ((self.Y - mean.unsqueeze(-1)).square() * self.mask).sum(dim=-1)
        std = (squares / (count - 1).clamp_min(1)).sqrt()
        return mean, torch.where(std > 1e-8, std, 1.0)

    def standardize(self, mean: Tensor, std: Tensor) -> PaddedTasks:
        """Moves the outcomes to ``(Y - mean) / std`` for ``M`` tensors of means and deviations."""
        Y = (self.Y - mean.unsqueeze(-1)) / std.unsqueeze(-1) * self.mask
        Yvar = self.Yvar / std.square().unsqueeze(-1)
        return PaddedTasks(self.X, Y, Yvar, self.mask, self.fixed_noise)

    def known_or(self, inferred: Tensor) -> Tensor:
        """Each point's noise variance: known, or its task's of an ``M`` tensor."""
        inferred = inferred.to(self.Yvar).unsqueeze(-1)
        return torch.where(self.fixed_noise.unsqueeze(-1), self.Yvar, inferred)
