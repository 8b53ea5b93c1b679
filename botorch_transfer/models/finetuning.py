"""What holds a model to its pre-trained values while the target's likelihood moves them."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.mlls import AddedLossTerm
from torch import Tensor
from torch.nn import Module

from botorch_transfer.kernels.feature_network import FeatureNetwork

# Given 20 points of targets of two public tables, these widths predicted better than no training at
# all. Three times either one was worse, no penalty by far: the noise falls to nothing.
WEIGHT_DEVIATION = 0.1
"""How far a network's weights are expected to move, a standard deviation."""

HYPERPARAMETER_DEVIATION = 0.3
"""How far all other parameters are; positive ones before their softplus, so a third or so."""


class PullToPretrained(AddedLossTerm):
    """The log density of parameters around their pre-trained values, up to a constant.

    A network has more weights than a target has points: by the likelihood alone, they would
    reproduce the points and leave no variance.

    Args:
        pairs: The parameters and what they started from.
        deviations: The standard deviation of each pair.
    """

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], deviations: list[float]) -> None:
        self._pairs = pairs
        self._deviations = deviations

    def loss(self, *params: Any) -> Tensor:
        """Evaluates it for each member of a batch."""
        terms = []
        for (parameter, anchor), deviation in zip(self._pairs, self._deviations, strict=True):
            squares = ((parameter - anchor) / deviation).square()
            own = tuple(range(squares.dim() - anchor.dim(), squares.dim()))
            terms.append(-0.5 * (squares.sum(dim=own) if own else squares))
        return torch.stack(terms).sum(dim=0)


def deviations(module: Module, names: list[str]) -> list[float]:
    """Says how far each of a module's parameters is expected to move.

    Args:
        module: The module.
        names: The parameters' names.

    Returns:
        A standard deviation each.
    """
    networks = tuple(
        f"{name}."
        for name, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, FeatureNetwork)
    )
    return [
        WEIGHT_DEVIATION if name.startswith(networks) else HYPERPARAMETER_DEVIATION
        for name in names
    ]
