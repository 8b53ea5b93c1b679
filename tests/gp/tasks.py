"""Small source data for the tests of pre-training."""

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_transfer.data import as_datasets
from botorch_transfer.gp.tasks import PaddedTasks

Data = dict[str, tuple[Tensor, ...]]


def draw_data(sizes: Sequence[int], dim: int = 2, known_noise: Sequence[int] = ()) -> Data:
    """Draws tasks of these sizes; those listed in ``known_noise`` have a ``Yvar``."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.double)

    data: Data = {}
    for index, n in enumerate(sizes):
        X = uniform(n, dim)
        Y = 10 + 3 * torch.sin(4 * X.sum(dim=-1, keepdim=True) + index) + 0.2 * uniform(n, 1)
        data[f"task {index}"] = (X, Y)
        if index in known_noise:
            data[f"task {index}"] = (X, Y, 0.05 + 0.1 * uniform(n, 1))
    return data


def padded(data: Data) -> PaddedTasks:
    """The padded tasks, standardized one by one."""
    tasks = PaddedTasks.from_datasets(as_datasets(data))
    return tasks.standardize(*tasks.moments())
