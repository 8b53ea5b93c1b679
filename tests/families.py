"""Small families of related tasks, which tests take their source and target data from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.devices import DEVICE

#: The family's units: far from standardized, so that a slip of units shows.
OFFSET, SCALE = 50.0, 10.0


@dataclass(frozen=True)
class ShiftedSines:
    """Sines of the sum of the inputs on the unit cube, shifted and scaled from task to task.

    Args:
        dim: The number of inputs.
        dtype: The data type of all tensors.
        device: The device of all tensors.
    """

    dim: int = 2
    dtype: torch.dtype = torch.double
    device: str = DEVICE

    def tensor(self, values: Any) -> Tensor:
        """Brings numbers into the tasks' data type, and to their device."""
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)

    def value(self, X: Tensor, shift: float = 0.0) -> Tensor:
        """Evaluates the task with a shift (the target has none): ``... x n x 1``."""
        weights = torch.linspace(1.0, 0.5, self.dim, dtype=X.dtype, device=X.device)
        angle = 5.0 / self.dim**0.5 * (X * weights).sum(dim=-1, keepdim=True)
        return OFFSET + SCALE * (1.0 + 0.5 * shift) * torch.sin(angle + shift)

    def inputs(self, *shape: int, seed: int = 0) -> Tensor:
        """Draws inputs: ``*shape x d``."""
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(*shape, self.dim, generator=generator, dtype=torch.double)
        return self.tensor(X)

    def target(self, n: int, seed: int = 100) -> tuple[Tensor, Tensor]:
        """Draws the target's data: ``n x d`` inputs and ``n x 1`` outcomes."""
        X = self.inputs(n, seed=seed)
        return X, self.value(X)

    def sources(self, sizes: Sequence[int] = (9, 6, 12)) -> dict[str, tuple[Tensor, Tensor]]:
        """Draws source data, one task for each number of points."""
        tasks = {}
        for index, size in enumerate(sizes):
            X = self.inputs(size, seed=index)
            tasks[f"task {index}"] = (X, self.value(X, shift=0.15 * (index + 1)))
        return tasks
