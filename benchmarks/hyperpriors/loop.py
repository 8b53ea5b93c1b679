"""Optimization of a task whose values are known at finitely many points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from torch import Tensor

Build = Callable[[Tensor, Tensor, Any], Any]
"""Builds a fitted model of the points so far; the third argument is the last step's model."""

Acquire = Callable[[Any, Tensor], AcquisitionFunction]


def normalized_regrets(
    X: Tensor,
    Y: Tensor,
    build: Build,
    acquire: Acquire,
    num_initial: int,
    num_steps: int,
    seed: int,
) -> list[float]:
    """Runs an optimization and measures its normalized simple regret.

    Args:
        X: An `N x d` tensor of all points.
        Y: An `N x 1` tensor of their values, to be maximized.
        build: Builds a fitted model.
        acquire: Builds the acquisition function of a model and the values so far.
        num_initial: The number of random points to begin with, the same for all methods.
        num_steps: The number of points to choose after them; fewer if there are no more.
        seed: The seed of the first points.

    Returns:
        The regret after each evaluation, the first ones included: between zero, for the best of all
        points, and one, for the worst.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(X), generator=generator)[:num_initial].tolist()
    model = None
    for _ in range(min(num_steps, len(X) - len(chosen))):
        model = build(X[chosen], Y[chosen], model)
        open_rows = torch.ones(len(X), dtype=torch.bool)
        open_rows[chosen] = False
        rows = open_rows.nonzero().squeeze(-1)
        with torch.no_grad():
            values = acquire(model, Y[chosen])(X[rows].unsqueeze(-2))
        chosen.append(int(rows[values.argmax()]))
    best = torch.cummax(Y[chosen].squeeze(-1), dim=0).values
    return ((Y.max() - best) / (Y.max() - Y.min())).tolist()
