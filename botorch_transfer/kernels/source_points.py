"""The source data of a joint model, all tasks' points one after another, and their noise.

Read it with :mod:`~botorch_transfer.kernels.source_conditional`, which conditions on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

import torch
from gpytorch.constraints import Interval
from gpytorch.module import Module as GPyTorchModule
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module, Parameter

from botorch_transfer.kernels.conditioned_batch import own_buffers, select_batch, shallow_copy
from botorch_transfer.kernels.coregionalization import TaskPoints


class SourcePoints(Module):
    """Source data as buffers, which copies of a model share.

    Args:
        X: An ``N_s x d`` tensor: the tasks' inputs, one task after another.
        Y: An ``N_s`` tensor of outcomes.
        Yvar: An ``N_s`` tensor of known noise variances, zero for tasks whose noise is inferred.
        sizes: The number of points of each task.
        names: The tasks' names, for messages.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    task_sizes: Tensor

    def __init__(
        self, X: Tensor, Y: Tensor, Yvar: Tensor, sizes: Sequence[int], names: Sequence[str]
    ) -> None:
        super().__init__()
        # The sizes are in the state_dict, so that no other split of the points loads in silence.
        task_sizes = torch.tensor(list(sizes), device=X.device)
        for name, buffer in {"X": X, "Y": Y, "Yvar": Yvar, "task_sizes": task_sizes}.items():
            self.register_buffer(name, buffer)
        self.sizes = tuple(sizes)
        self.names = tuple(names)

    def __deepcopy__(self, memo: dict[int, Any]) -> SourcePoints:
        # Nothing writes into the tensors, so copies of a model, each fantasy is one, share them.
        return shallow_copy(self)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        sizes = state_dict.get(f"{prefix}task_sizes", self.task_sizes).tolist()
        if tuple(sizes) != self.sizes:
            raise ValueError(
                f"The state_dict is of source tasks with {sizes} points, and these have "
                f"{list(self.sizes)}."
            )
        # Copies share the tensors: new ones are loaded into, not those.
        own_buffers(self)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def groups(self, one_a_task: bool) -> list[tuple[TaskPoints, slice]]:
        """Splits the points into groups that are to be factorized together.

        Args:
            one_a_task: Whether each task is a group of its own; otherwise there is one group.

        Returns:
            Each group's points, and where they are among all.
        """
        tasks = range(len(self.sizes))
        if not one_a_task:
            return [(TaskPoints(self.X, tuple(tasks), self.sizes), slice(0, len(self.X)))]
        ends = accumulate(self.sizes)
        rows = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        points = [TaskPoints(self.X[rows[task]], (task,), (self.sizes[task],)) for task in tasks]
        return list(zip(points, rows, strict=True))


class SourceNoise(GPyTorchModule):
    """The noise variances of source data: known for some tasks, inferred for the others.

    Args:
        known: A flag for each task: whether its noise is known.
        constraint: The start and the bounds of an inferred noise variance.
        prior: Its hyperprior; none if omitted.
        batch_shape: The batch shape of the model.
    """

    raw_noise: Parameter

    def __init__(
        self,
        known: Sequence[bool],
        constraint: Interval,
        prior: Prior | None = None,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.known = tuple(known)
        count = self.known.count(False)
        raw = torch.zeros(*batch_shape, count)
        self.register_parameter("raw_noise", Parameter(raw, requires_grad=count > 0))
        self.register_constraint("raw_noise", constraint)
        if prior is not None and count > 0:
            self.register_prior("noise_prior", prior, _get_noise, _set_noise)

    @property
    def noise(self) -> Tensor:
        """The inferred noise variances, one for each task without known ones."""
        return self.raw_noise_constraint.transform(self.raw_noise)

    @noise.setter
    def noise(self, value: Tensor) -> None:
        value = torch.as_tensor(value).to(self.raw_noise).expand_as(self.raw_noise)
        self.initialize(raw_noise=self.raw_noise_constraint.inverse_transform(value))

    def variances(self, points: SourcePoints) -> Tensor:
        """Each point's noise variance.

        Args:
            points: The source data.

        Returns:
            A ``batch_shape x N_s`` tensor.
        """
        noise, batch_shape = self.noise, self.raw_noise.shape[:-1]
        pieces, inferred = [], 0
        for known, Yvar in zip(self.known, points.Yvar.split(points.sizes), strict=True):
            value = Yvar if known else noise[..., inferred, None]
            pieces.append(value.expand(*batch_shape, len(Yvar)))
            inferred += not known
        return torch.cat(pieces, dim=-1)

    def __getitem__(self, index: Any) -> Self:
        """Selects from the batch."""
        return select_batch(self, "raw_noise", index)


def _get_noise(module: SourceNoise) -> Tensor:
    return module.noise


def _set_noise(module: SourceNoise, value: Tensor) -> None:
    module.noise = value
